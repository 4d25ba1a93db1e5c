package policy

import "github.com/ledgerd/ledgerd/internal/events"

// TaskSeconds says whether records under a name are task state, and how long
// one may last at most: the least that any rule over the name allows, 0 where
// none says.
func (p *Policy) TaskSeconds(namespace, key string) (seconds uint64, task bool) {
	if p.Class(namespace, key) != Task {
		return 0, false
	}
	for _, rule := range p.Namespaces {
		if rule.Seconds > 0 && (seconds == 0 || rule.Seconds < seconds) && covers(rule.Name, namespace+"."+key) {
			seconds = rule.Seconds
		}
	}
	return seconds, true
}

// seconds reads the ttl_seconds of a rule, which belongs to class task.
func (d *decoder) seconds(n node, class Class) uint64 {
	if class != Task {
		d.faultf(n, "ttl_seconds belongs to class %s", Task)
		return 0
	}
	return uint64(d.integer(n, "ttl_seconds", 1, events.TTLSecondsMax, 0))
}
