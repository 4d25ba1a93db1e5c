package wire

import "github.com/ledgerd/ledgerd/internal/events"

// fields reads the members of one object and counts those it was asked for,
// so that what nobody asked for is noticed.
type fields struct {
	value    events.Value
	used     int
	current  string // the member asked for last
	bad      string // the first that is missing or not of its form
	tooLarge bool
	wait     int64
}

func (f *fields) check(ok bool) {
	if ok || f.bad != "" {
		return
	}
	if f.bad = f.current; f.bad == "" {
		f.bad = "the request"
	}
}

// fault says what is wrong with the object, in names of ours only; empty if
// nothing is.
func (f *fields) fault() string {
	switch {
	case f.bad != "":
		return f.bad + ": missing, of another type, or outside its form"
	case f.used != len(f.value.Members):
		return "a field that this operation does not have"
	}
	return ""
}

func (f *fields) has(name string) bool {
	_, ok := f.value.Get(name)
	return ok
}

// take returns a member that must not be null.
func (f *fields) take(name string) (events.Value, bool) {
	f.current = name
	v, ok := f.value.Get(name)
	if ok {
		f.used++
	}
	return v, ok && v.Kind != events.Null
}

func (f *fields) str(name string) string {
	v, ok := f.take(name)
	f.check(ok && v.Kind == events.String)
	return v.Text
}

func (f *fields) valid(name string, valid func(string) bool) string {
	s := f.str(name)
	f.check(valid(s))
	return s
}

func (f *fields) id(name string) string { return f.valid(name, events.ValidID) }

func (f *fields) namespace() string { return f.valid("namespace", events.ValidNamespace) }

func (f *fields) recordKey() string { return f.valid("key", events.ValidKey) }

// printable is an optional string.
func (f *fields) printable(name string, valid func(string) bool) string {
	if !f.has(name) {
		return ""
	}
	return f.valid(name, valid)
}

func (f *fields) visibility() string {
	if !f.has("visibility") {
		return ""
	}
	return f.valid("visibility", events.ValidVisibility)
}

func (f *fields) positive(name string) uint64 {
	v, ok := f.take(name)
	n, integer := v.Int()
	f.check(ok && integer && n > 0)
	if n < 0 {
		return 0
	}
	return uint64(n)
}

func (f *fields) boolean(name string) bool {
	v, ok := f.take(name)
	f.check(ok && (v.Kind == events.True || v.Kind == events.False))
	return v.Kind == events.True
}

func (f *fields) strings(name string) []string {
	v, ok := f.take(name)
	f.check(ok && v.Kind == events.Array)
	list := make([]string, 0, len(v.Elements))
	for _, e := range v.Elements {
		f.check(e.Kind == events.String)
		list = append(list, e.Text)
	}
	return list
}

// names is a list of distinct names within the limit of capabilities.
func (f *fields) names(name string, valid func(string) bool) []string {
	list := f.strings(name)
	seen := make(map[string]bool, len(list))
	for _, s := range list {
		f.check(valid(s) && !seen[s])
		seen[s] = true
	}
	if len(list) > events.CapabilitiesMax {
		f.tooLarge = true
	}
	return list
}

func (f *fields) capabilities() []string { return f.names("capabilities", events.ValidAction) }

// recordValue is canonical.
func (f *fields) recordValue() []byte {
	v, ok := f.take("value")
	f.check(ok)
	if !ok {
		return nil
	}
	b := v.AppendCanonical(nil)
	if len(b) > events.ValueBytesMax {
		f.tooLarge = true
	}
	return b
}

// noArguments are those of an action that is asked for without any. They are
// never changed.
var noArguments = []byte("{}")

func (f *fields) arguments() []byte {
	if !f.has("arguments") {
		return noArguments
	}
	v, ok := f.take("arguments")
	f.check(ok && v.Kind == events.Object)
	if !ok {
		return nil
	}
	b := v.AppendCanonical(nil)
	if len(b) > events.ArgumentsBytesMax {
		f.tooLarge = true
	}
	return b
}
