package audit

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// WitnessPolicy says which witnesses there are and which of them must have
// cosigned a checkpoint: a file of C2SP tlog-policy.
type WitnessPolicy struct {
	Logs      []string // verifier keys
	Witnesses []PolicyWitness
	groups    map[string]group
	quorum    string // a witness or group, or none
}

// PolicyWitness is a witness of a policy.
type PolicyWitness struct {
	*Witness
	Label string // its name in the policy
	URL   string // where it takes checkpoints; empty where it is only verified
}

type group struct {
	need    int
	members []string
}

const (
	witnessesMax = 64
	noQuorum     = "none"
)

// ParseWitnessPolicy reads a policy: lines "log VKEY [URL]", "witness NAME VKEY
// [URL]", "group NAME NEED MEMBER…" with NEED a number, any or all, and one
// "quorum NAME". Names come before they are used; # begins a comment line.
func ParseWitnessPolicy(b []byte) (*WitnessPolicy, error) {
	p := &WitnessPolicy{groups: map[string]group{}}
	n := 0
	for line := range strings.Lines(string(b)) {
		n++
		f := strings.Fields(line)
		if len(f) == 0 || strings.HasPrefix(f[0], "#") {
			continue
		}
		if err := p.add(f[0], f[1:]); err != nil {
			return nil, fmt.Errorf("witness policy: line %d: %w", n, err)
		}
	}
	if p.quorum == "" {
		return nil, errors.New("witness policy: no line says what the quorum is")
	}
	return p, nil
}

func (p *WitnessPolicy) add(keyword string, f []string) error {
	switch {
	case keyword == "log" && (len(f) == 1 || len(f) == 2):
		p.Logs = append(p.Logs, f[0])
	case keyword == "witness" && (len(f) == 2 || len(f) == 3):
		return p.witness(f)
	case keyword == "group" && len(f) >= 3:
		return p.group(f[0], f[1], f[2:])
	case keyword == "quorum" && len(f) == 1:
		if p.quorum != "" {
			return errors.New("a second quorum")
		}
		if f[0] != noQuorum && !p.known(f[0]) {
			return fmt.Errorf("%s is no witness or group above", quote(f[0]))
		}
		p.quorum = f[0]
	default:
		return fmt.Errorf("%s with %d fields is no line of a tlog-policy", quote(keyword), len(f))
	}
	return nil
}

func (p *WitnessPolicy) known(name string) bool {
	_, ok := p.groups[name]
	return ok || slices.ContainsFunc(p.Witnesses, func(w PolicyWitness) bool { return w.Label == name })
}

func (p *WitnessPolicy) witness(f []string) error {
	w, err := ParseWitness(f[1])
	switch {
	case err != nil:
		return err
	case f[0] == noQuorum || p.known(f[0]):
		return fmt.Errorf("%s is taken", quote(f[0]))
	case len(p.Witnesses) == witnessesMax:
		return fmt.Errorf("more than %d witnesses", witnessesMax)
	case slices.ContainsFunc(p.Witnesses, func(o PolicyWitness) bool { return string(o.key) == string(w.key) || o.id == w.id }):
		return fmt.Errorf("%s has the key of another: one witness counts once", quote(f[0]))
	}
	at := ""
	if len(f) == 3 {
		at = strings.TrimSuffix(f[2], "/")
		if u, err := url.Parse(at); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
			return fmt.Errorf("%s is no URL of a witness", quote(f[2]))
		}
	}
	p.Witnesses = append(p.Witnesses, PolicyWitness{w, f[0], at})
	return nil
}

func (p *WitnessPolicy) group(name, need string, members []string) error {
	if name == noQuorum || p.known(name) {
		return fmt.Errorf("%s is taken", quote(name))
	}
	for i, m := range members {
		if !p.known(m) || slices.Contains(members[:i], m) {
			return fmt.Errorf("%s is no witness or group above, or stands there twice", quote(m))
		}
	}
	g := group{members: members}
	switch need {
	case "any":
		g.need = 1
	case "all":
		g.need = len(members)
	default:
		n, err := strconv.Atoi(need)
		if err != nil || n < 1 || n > len(members) {
			return fmt.Errorf("%s of %d members", quote(need), len(members))
		}
		g.need = n
	}
	p.groups[name] = g
	return nil
}

// Met reports whether the quorum is met by the witnesses that cosigned.
func (p *WitnessPolicy) Met(cosigned func(w *Witness) bool) bool {
	has := map[string]bool{noQuorum: true}
	for _, w := range p.Witnesses {
		has[w.Label] = cosigned(w.Witness)
	}
	return p.met(p.quorum, has)
}

func (p *WitnessPolicy) met(name string, has map[string]bool) bool {
	g, isGroup := p.groups[name]
	if !isGroup {
		return has[name]
	}
	n := 0
	for _, m := range g.members {
		if _, asked := has[m]; !asked {
			has[m] = p.met(m, has)
		}
		if has[m] {
			n++
		}
	}
	return n >= g.need
}

// Quorum is the witnesses as a policy of which n must have cosigned.
func Quorum(n int, vkeys []string) (*WitnessPolicy, error) {
	p := &WitnessPolicy{groups: map[string]group{}}
	var labels []string
	for i, vkey := range vkeys {
		label := strconv.Itoa(i + 1)
		if err := p.witness([]string{label, vkey}); err != nil {
			return nil, err
		}
		labels = append(labels, label)
	}
	if n < 1 || n > len(labels) {
		return nil, fmt.Errorf("%d of %d witnesses", n, len(labels))
	}
	p.groups["q"], p.quorum = group{n, labels}, "q"
	return p, nil
}
