package policy

// Excerpt is a line of a document as it may be shown: shortened, and with no
// value of a record, no seed and nothing that a terminal obeys.
func Excerpt(line string) string {
	shown, _ := masked([]string{line}, 0)
	return excerpt(shown, 0)
}

// Open reports whether an action takes any object of arguments.
func (a Action) Open() bool { return a.Arguments == nil }

// Rule is the longest namespace rule that covers a name.
func (p *Policy) Rule(name string) (NamespaceRule, bool) { return covering(p.Namespaces, []byte(name)) }

// ClassOnly reports whether a rule says nothing but how records are read.
func (r NamespaceRule) ClassOnly() bool { return r.Value == nil && r.Seconds == 0 }

// Plain reports whether a rule says what holds where there is none.
func (r NamespaceRule) Plain() bool { return r.ClassOnly() && r.Class == Preference }
