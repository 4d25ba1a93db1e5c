package sim

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
)

// kinds of agents.
const (
	honest  = "honest"  // sends what it may send, as often as it takes to be answered
	buggy   = "buggy"   // mistakes revisions, owners and operation ids
	hostile = "hostile" // sends what others have broken things with
)

// actor is somebody who sends requests.
type actor struct {
	id, kind  string
	principal string // its role, empty for an agent
	sent      []*message
	waiting   map[string]*message // by operation id; honest ones only
}

func (w *world) newActor(id, kind string) *actor {
	a := &actor{id: id, kind: kind, waiting: map[string]*message{}}
	w.actors = append(w.actors, a)
	return a
}

func (a *actor) hear(l letter) { delete(a.waiting, l.id) }

type object = map[string]any

var (
	capabilities = []string{"memory.read", "memory.write", "agent.register", "x.one", "x.two", "x.three"}
	actions      = []string{"x.one", "x.two", "x.three"}
	namespaces   = []string{"note", "rule", "secret", "task", "note.sub", "deep.a.b"}
)

func pick[T any](w *world, list []T) T { return list[w.r.IntN(len(list))] }

// act has somebody send something.
func (w *world) act() {
	from := w.someone()
	if !w.connected(from) {
		w.volumes.refused++
		return
	}
	if len(from.sent) > 0 && w.percent(w.options.Retry) {
		m := pick(w, from.sent)
		w.volumes.retried++
		w.bus = append(w.bus, m)
		return
	}
	m := w.compose(from)
	from.sent = append(from.sent, m)
	if len(from.sent) > 60 {
		from.sent = slices.Delete(from.sent, 0, 30)
	}
	w.bus = append(w.bus, m)
	w.volumes.sent[from.kind]++
	w.note("%s %s %s", from.id, m.operation, m.body)
}

// connected is the server's part: it lets in whoever holds a key that is in
// force, as far as that is durable, and pins the lane to the role. Now and then a
// connection outlives its right by a message.
func (w *world) connected(from *actor) bool {
	if w.percent(3) {
		return true
	}
	identity, ok := w.stepper.Lookup(w.keyOf(from))
	return ok && !identity.Revoked && identity.ID == from.id && (identity.Role == "agent") == (from.principal == "")
}

// keyOf is the key that somebody holds: the one that is registered for it, but
// for agents, who hold their own whatever is registered.
func (w *world) keyOf(from *actor) string {
	if p := w.model.principal(from.id); p != nil {
		return w.model.principalKey(from.id)
	}
	return publicKey(from.id)
}

func (w *world) someone() *actor {
	if w.model.policy == nil && w.percent(70) || w.percent(w.options.Admin+w.options.Erase/4) {
		return w.actors[0]
	}
	for range 8 {
		if a := pick(w, w.actors); a.principal == "" && w.connected(a) {
			return a
		}
	}
	return pick(w, w.actors)
}

// begin has the admin put a policy and a tree in force, before anything fails.
func (w *world) begin() error {
	p := &policyDoc{version: "start", environment: capabilities, actions: actions, classes: map[string]string{"rule": "mandatory", "secret": "secret", "task": "task"}, depth: 3 + w.r.IntN(4), children: 3 + w.r.IntN(6)}
	text := p.yaml()
	texts := []string{w.document(text, &document{policy: p, digest: sha256.Sum256([]byte(text))})}
	ids := []string{""}
	for range 1 + w.r.IntN(6) {
		id := fmt.Sprintf("agent%d", len(w.actors))
		a := fact{kind: "agent.registered", id: id, parent: pick(w, ids), key: publicKey(id), capabilities: capabilities}
		if w.percent(40) {
			a.capabilities = w.someCapabilities()
		}
		for depth, at := 1, a.parent; at != ""; depth++ {
			if at = w.known.documents[at].agent.parent; depth >= p.depth {
				a.parent = ""
				break
			}
		}
		text := "kind: Agent\nid: " + id + "\n"
		if a.parent != "" {
			text += "parent: " + a.parent + "\n"
		}
		text += "capabilities: [" + strings.Join(a.capabilities, ", ") + "]\npublic_key: " + a.key + "\n"
		texts = append(texts, w.document(text, &document{agent: &a}))
		w.known.documents[id] = &document{agent: &a}
		ids = append(ids, id)
		w.newActor(id, w.kind())
	}
	for i, can := range [][]string{{"x.one", "x.two"}, {"x.two", "x.three"}} {
		h := &handler{id: "hand" + itoa(i), actions: can, store: map[string]effect{}}
		w.handlers = append(w.handlers, h)
		p := fact{kind: "principal.registered", id: h.id, role: "handler", key: publicKey(h.id), capabilities: can}
		texts = append(texts, w.document("kind: Principal\nid: "+h.id+"\nrole: handler\npublic_key: "+p.key+"\nactions: ["+strings.Join(can, ", ")+"]\n", &document{principal: &p}))
	}
	body, err := json.Marshal(object{"documents": texts})
	if err != nil {
		return err
	}
	w.queue = append(w.queue, &message{from: w.actors[0], control: true, operation: "apply", body: body, silent: true})
	for len(w.queue)+len(w.flight) > 0 {
		if err := w.judge(); err != nil {
			return err
		}
		w.log.sync(len(w.log.pending))
		if err := w.settle(); err != nil {
			return err
		}
	}
	return nil
}

// kind is what a new agent is.
func (w *world) kind() string {
	switch {
	case w.percent(w.options.Hostile):
		return hostile
	case w.percent(w.options.Buggy):
		return buggy
	}
	return honest
}

// compose makes a request of somebody's kind.
func (w *world) compose(from *actor) *message {
	m := &message{from: from, control: from.principal != ""}
	var body object
	if m.control {
		m.operation, body = w.verb()
		if from.principal == "registrar" && w.percent(70) {
			m.operation, body = w.registration(true)
		}
	} else {
		m.operation, body = w.proposal(from)
	}
	if from.kind == hostile && w.percent(30) {
		if w.abuse(m) {
			return m
		}
	}
	w.name(m, body)
	b, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	m.body = b
	switch {
	case from.kind == hostile && w.percent(20):
		w.spoil(m)
	case from.kind != honest && w.percent(w.options.Mutate) && m.operation != "apply" && m.operation != "restriction.add":
		m.mutated = true
		m.body = bytes.Clone(m.body)
		m.body[w.r.IntN(len(m.body))] ^= 1 << w.r.IntN(8)
	case from.kind != honest && w.percent(3):
		m.foreign = true
	case w.options.Silent && w.percent(20):
		m.silent = true
	case from.kind == honest && m.id != "":
		from.waiting[m.id] = m
	}
	return m
}

// name gives a request its operation id, which a faulty agent may have used for
// something else.
func (w *world) name(m *message, body object) {
	if m.from.kind != honest && w.percent(20) {
		return
	}
	w.serial++
	m.id = fmt.Sprintf("op-%d", w.serial)
	if m.from.kind != honest && len(m.from.sent) > 0 && w.percent(w.options.Reuse) {
		m.id = pick(w, m.from.sent).id
	}
	if m.id != "" {
		body["operation_id"] = m.id
	}
	if w.percent(10) {
		body["trace_id"] = fmt.Sprintf("trace %d", w.serial)
	}
}

func (w *world) agentID(of *actor) string {
	if of != nil && w.percent(70) {
		return of.id
	}
	if ids := w.model.agents(); len(ids) > 0 && w.percent(95) {
		return pick(w, ids)
	}
	return "nobody"
}

// record is somebody's, and often one that is there.
func (w *world) record(owner string) object {
	if w.percent(50) {
		var there []record
		for i := range w.model.facts {
			if f := &w.model.facts[i]; f.kind == "memory.written" {
				there = append(there, f.record)
			}
		}
		if len(there) > 0 {
			r := pick(w, there)
			dot := strings.LastIndexByte(r.name, '.')
			if w.percent(40) {
				owner = r.owner
			}
			return object{"owner_agent_id": owner, "namespace": r.name[:dot], "key": r.name[dot+1:]}
		}
	}
	return object{"owner_agent_id": owner, "namespace": pick(w, namespaces[:min(w.options.Names, len(namespaces))]), "key": "k" + itoa(w.r.IntN(w.options.Names))}
}

func (w *world) value(namespace any) any {
	if w.r.IntN(1000) < w.options.Big {
		return canary + strings.Repeat("x", 70_000)
	}
	if namespace == any("rule") && w.percent(80) {
		return w.percent(60)
	}
	switch w.r.IntN(6) {
	case 0:
		return w.r.IntN(w.options.Values)
	case 1:
		return object{"text": canary + "in an object", "list": []any{1, true, "a"}}
	case 2:
		return w.percent(50)
	}
	return fmt.Sprintf("%s%d", canary, w.r.IntN(1<<30))
}

func (w *world) visibility(body object) {
	if v := pick(w, []string{"", "private", "children", "descendants", "descendants"}); v != "" {
		body["visibility"] = v
	}
}

// proposal is what an agent asks for.
func (w *world) proposal(from *actor) (operation string, body object) {
	if w.percent(w.options.Lend) {
		return w.lending(from)
	}
	switch at := w.r.IntN(100); {
	case at < 26:
		body = w.record(w.agentID(from))
		if w.percent(65) {
			delete(body, "owner_agent_id")
		}
		return "memory.read", body
	case at < 50:
		body = w.record(w.agentID(from))
		body["value"] = w.value(body["namespace"])
		w.visibility(body)
		w.revision(body, 10)
		w.ttl(body)
		return "memory.write", body
	case at < 56:
		body = w.record(w.agentID(from))
		w.revision(body, 10)
		if body["expected_revision"] == nil {
			body["expected_revision"] = 1
		}
		return "memory.delete", body
	case at < 63:
		body = object{"action": pick(w, append(capabilities, "x.four", "memory.delete", "Not A Name"))}
		if w.percent(60) {
			body["arguments"] = object{"path": canary + "path", "n": w.r.IntN(5)}
		}
		if w.r.IntN(1000) < w.options.Big {
			body["arguments"] = object{"path": canary + strings.Repeat("y", 70_000)}
		}
		return "action.authorize", body
	case at < 69:
		return "sop.validate", w.procedure(from)
	case at < 86:
		body = w.procedure(from)
		if w.percent(20) {
			body["wait_ms"] = w.r.IntN(1000)
		}
		return "sop.submit", body
	case at < 91:
		return "run.cancel", object{"run_id": w.someRun(from.id)}
	case at < 98:
		return w.registration(false)
	}
	return pick(w, []string{"no.such", "memory.wipe_all", "grant.lend", "restriction.take"}), object{}
}

// revision adds the one that is right, mostly.
func (w *world) revision(body object, wrong int) {
	r := w.model.live(body["owner_agent_id"].(string), body["namespace"].(string)+"."+body["key"].(string))
	switch {
	case w.percent(wrong):
		body["expected_revision"] = 1 + w.r.IntN(4)
	case r != nil && !w.percent(wrong):
		body["expected_revision"] = r.revision
	}
}

func (w *world) procedure(from *actor) object {
	var steps []any
	n := 1 + w.r.IntN(4)
	if w.percent(4) {
		n = 0
	}
	for i := range n {
		step := object{"step_id": "s" + itoa(i), "action": pick(w, actions)}
		switch w.r.IntN(13) {
		case 0:
			step["action"] = pick(w, append(capabilities, "no.such", "memory.delete", "sop.submit", "UPPER"))
		case 1:
			step["step_id"] = pick(w, []string{"", "s0"})
		case 2:
			body := w.record(w.agentID(from))
			body["value"] = w.value(body["namespace"])
			w.visibility(body)
			w.ttl(body)
			step["action"], step["arguments"] = "memory.write", body
		case 3:
			body := w.record(w.agentID(from))
			w.revision(body, 5)
			step["action"], step["arguments"] = pick(w, []string{"memory.delete", "memory.read"}), body
		case 4:
			step["arguments"] = object{"to": []any{object{"owner_agent_id": w.agentID(from)}}, "text": canary + "argument"}
		case 5:
			if from.kind != honest {
				step[pick(w, []string{"args", "agent", "if"})] = object{}
			}
		}
		steps = append(steps, step)
	}
	sop := object{"sop_id": "p" + itoa(w.r.IntN(3)), "version": 1 + w.r.IntN(2), "steps": steps}
	if steps == nil {
		sop["steps"] = []any{}
	}
	if from.kind != honest && w.percent(10) {
		sop["version"] = pick(w, []any{0, -1, true, 1.5, "1"})
	}
	return object{"sop": sop}
}

func (w *world) someCapabilities() []string {
	set := []string{}
	for _, c := range capabilities {
		if w.percent(75) {
			set = append(set, c)
		}
	}
	return set
}

// registration makes an agent, and somebody who may act as it once it is there.
func (w *world) registration(control bool) (string, object) {
	if control && w.percent(25) {
		return "agent.revoke", object{"agent_id": w.agentID(nil)}
	}
	id := fmt.Sprintf("agent%d", len(w.actors))
	body := object{"agent_id": id, "capabilities": w.someCapabilities(), "public_key": publicKey(id)}
	switch w.r.IntN(20) {
	case 0:
		body["agent_id"] = w.agentID(nil) // taken
	case 1:
		body["public_key"] = publicKey(w.agentID(nil))
	case 2:
		body["public_key"] = "UNKNOWN"
	default:
		w.newActor(id, w.kind())
	}
	if control {
		if len(w.model.agents()) > 1 && w.percent(85) {
			body["parent_id"] = w.agentID(nil)
		}
		if w.percent(2) {
			body["parent_id"] = body["agent_id"]
		}
	}
	if w.percent(15) {
		at := w.r.IntN(len(capabilities) - 2)
		body["use"] = capabilities[at : at+w.r.IntN(4)] // a list of nothing is malformed
	}
	if w.percent(15) {
		body["writes"] = []string{pick(w, []string{"note.*", "note", "deep.*", "rule"})}
	}
	return "agent.register", body
}

// verb is what an admin asks for.
func (w *world) verb() (operation string, body object) {
	if w.model.policy != nil && w.percent(w.options.Erase) {
		return w.erasures()
	}
	if rules := w.model.rules(); len(rules) > 0 && w.percent(w.options.Lend/3) {
		r := pick(w, rules)
		return "restriction.remove", object{"agent_id": r.agent, "id": pick(w, []string{r.id, r.id, "r9"})}
	}
	at := w.r.IntN(100)
	if w.model.policy == nil {
		at = 0
	}
	switch {
	case at < 14:
		return "apply", object{"documents": []string{w.policyDocument()}}
	case at < 26:
		return "apply", w.documents()
	case at < 56:
		return w.registration(true)
	case at < 70:
		return w.principals()
	case at < 78:
		body = w.record(w.agentID(nil))
		body["value"] = w.value(body["namespace"])
		w.visibility(body)
		return "memory.load", body
	case at < 84:
		set := capabilities
		if w.percent(50) {
			set = w.someCapabilities()
		}
		if w.percent(5) {
			set = append(slices.Clone(set), "x.four")
		}
		return "environment.set", object{"capabilities": set}
	}
	if w.percent(50) {
		return "clock.accept", object{}
	}
	return w.emergencies()
}

func (w *world) principals() (string, object) {
	id := "person" + itoa(w.r.IntN(6))
	switch w.r.IntN(4) {
	case 0:
		return "principal.revoke", object{"id": pick(w, []string{id, id, "admin"})}
	case 1:
		return "principal.rekey", object{"id": id, "public_key": publicKey(id + itoa(w.r.IntN(4)))}
	}
	role := pick(w, []string{"registrar", "registrar", "admin", "observer", "auditor", "handler", "nothing"})
	body := object{"id": id, "role": role, "public_key": publicKey(id)}
	if role == "handler" && w.percent(80) {
		body["actions"] = []string{"x.one"}
	}
	if role == "observer" && w.percent(40) {
		body["root"] = w.agentID(nil)
	}
	if (role == "registrar" || role == "admin") && !slices.ContainsFunc(w.actors, func(a *actor) bool { return a.id == id }) {
		w.newActor(id, pick(w, []string{honest, buggy, hostile})).principal = role
	}
	return "principal.register", body
}

// policyDocument makes a policy, one that was, or one that is none.
func (w *world) policyDocument() string {
	if w.percent(5) {
		return w.document("kind: Policy\nversion: broken\nenvironment: [nothing]\n", &document{broken: true})
	}
	p := &policyDoc{version: "v" + itoa(w.r.IntN(12)), actions: actions, classes: map[string]string{"rule": "mandatory", "secret": "secret", "task": "task"}, depth: 2 + w.r.IntN(5), children: 2 + w.r.IntN(6)}
	if w.percent(30) {
		p.timeouts = map[string]int{pick(w, actions): 1 + w.r.IntN(5)}
	}
	if w.percent(20) {
		p.actions = actions[:1+w.r.IntN(2)]
	}
	if w.percent(30) {
		p.classes[pick(w, []string{"note.sub", "deep.a", "note.k1"})] = pick(w, []string{"secret", "mandatory", "task"})
	}
	if w.percent(40) {
		p.records, p.treeRecords = w.r.IntN(8), w.r.IntN(12)
	}
	if w.percent(40) {
		p.most = pick(w, []int{1, 60, 7200, 30 * 86400})
	}
	if w.percent(w.options.Erase / 3) {
		p.retention = 1 + w.r.IntN(2)
	}
	if w.percent(10) {
		delete(p.classes, pick(w, []string{"rule", "secret", "task"}))
	}
	for _, c := range []string{"memory.read", "memory.write", "agent.register"} {
		if w.percent(93) {
			p.environment = append(p.environment, c)
		}
	}
	for _, a := range p.actions {
		if w.percent(90) {
			p.environment = append(p.environment, a)
		}
	}
	text := p.yaml()
	return w.document(text, &document{policy: p, digest: sha256.Sum256([]byte(text))})
}

func (w *world) document(text string, d *document) string {
	if d.policy != nil {
		if old := w.known.policies[d.digest]; old == nil {
			w.known.policies[d.digest] = d.policy
		}
	}
	w.known.documents[text] = d
	return text
}

// documents is an apply of several things that may build on each other.
func (w *world) documents() object {
	var texts []string
	for range 1 + w.r.IntN(4) {
		switch w.r.IntN(6) {
		case 0:
			texts = append(texts, w.policyDocument())
		case 1:
			id := "person" + itoa(w.r.IntN(6))
			p := fact{kind: "principal.registered", id: id, role: pick(w, []string{"auditor", "observer"}), key: publicKey(id)}
			texts = append(texts, w.document("kind: Principal\nid: "+id+"\nrole: "+p.role+"\npublic_key: "+p.key+"\n", &document{principal: &p}))
		case 2:
			r := record{owner: w.agentID(nil), name: pick(w, namespaces) + ".k" + itoa(w.r.IntN(w.options.Names)), visibility: "descendants", value: canary + "loaded"}
			value := canary + "loaded"
			if w.percent(40) {
				r.value, value = true, "true"
			}
			dot := strings.LastIndexByte(r.name, '.')
			texts = append(texts, w.document("kind: Memory\nowner: "+r.owner+"\nnamespace: "+r.name[:dot]+"\nkey: "+r.name[dot+1:]+"\nvalue: "+value+"\nvisibility: descendants\n", &document{memory: &r}))
		default:
			texts = append(texts, w.agentDocument(len(texts)))
		}
	}
	body := object{"documents": texts}
	if w.percent(10) {
		body["dry_run"] = true
	}
	if w.percent(10) {
		body["expected_version"] = "v" + itoa(w.r.IntN(12))
	}
	return body
}

// agentDocument changes what an agent declares, or makes one, under a parent
// that may come later in the same apply, or never.
func (w *world) agentDocument(n int) string {
	a := fact{kind: "agent.registered", capabilities: w.someCapabilities()}
	if w.percent(55) {
		if a.id = w.agentID(nil); w.model.agent(a.id) != nil {
			a.parent = w.model.agent(a.id).parent
		}
		if w.percent(5) {
			a.parent = w.agentID(nil)
		}
	} else {
		a.id = fmt.Sprintf("agent%d", len(w.actors))
		a.key = publicKey(a.id)
		w.newActor(a.id, w.kind())
		a.parent = pick(w, []string{"", w.agentID(nil), fmt.Sprintf("agent%d", len(w.actors)), "lost"})
	}
	text := "kind: Agent\nid: " + a.id + "\n"
	if a.parent != "" {
		text += "parent: " + a.parent + "\n"
	}
	text += "capabilities: [" + strings.Join(a.capabilities, ", ") + "]\n"
	if a.key != "" {
		text += "public_key: " + a.key + "\n"
	}
	return w.document(text, &document{agent: &a})
}

// spoil turns a request into one that is certainly none.
func (w *world) spoil(m *message) {
	m.malformed = true
	inner := bytes.Clone(m.body[1:])
	if string(inner) == "}" {
		inner = []byte(`"x":1}`)
	}
	join := func(first string) []byte { return append([]byte("{"+first+","), inner...) }
	switch w.r.IntN(8) {
	case 0:
		m.body = join(`"actor_id":"admin"`)
	case 1:
		m.body = join(`"trace_id":"a","trace_id":"b"`)
	case 2:
		m.body = join(`"trace_id":"a","tr\u0061ce_id":"b"`)
	case 3:
		m.body = join(`"Trace_id":"a"`)
	case 4:
		m.body = append(bytes.Clone(m.body), m.body...)
	case 5:
		m.body = m.body[:w.r.IntN(len(m.body))]
	case 6:
		m.body = join(`"x":` + strings.Repeat("[", 40) + strings.Repeat("]", 40))
	case 7:
		m.body = join("\"trace_id\":\"\xff\"")
	}
}

// abuseCase is a row of testdata/abuse.jsonl: an input that broke something of
// somebody's, and what it must come to here.
type abuseCase struct {
	Operation string          `json:"operation"`
	Input     json.RawMessage `json:"input"`
	Encoding  string          `json:"encoding"`
	Reason    string          `json:"reason"`
	body      []byte
}

var abuseCases = sync.OnceValue(func() (cases []abuseCase) {
	f, err := os.Open("testdata/abuse.jsonl")
	if err != nil {
		panic(err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var c abuseCase
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			panic(err)
		}
		var text string
		var made struct {
			Prefix, Unit, Suffix string
			N                    int
		}
		if c.Encoding == "gen" {
			err = json.Unmarshal(c.Input, &made)
			text = made.Prefix + strings.Repeat(made.Unit, made.N) + made.Suffix
		} else {
			err = json.Unmarshal(c.Input, &text)
		}
		c.body = []byte(text)
		if c.Encoding == "base64" && err == nil {
			c.body, err = base64.StdEncoding.DecodeString(text)
		}
		if err != nil {
			panic(err)
		}
		cases = append(cases, c)
	}
	return cases
})

// abuse makes a request of an abuse case, which the lane must have.
func (w *world) abuse(m *message) bool {
	c := pick(w, abuseCases())
	if m.control || !slices.Contains(proposals, c.Operation) {
		return false
	}
	m.operation = c.Operation
	m.malformed = c.Reason == "malformed_request"
	m.body = []byte(strings.ReplaceAll(string(c.body), "$KEY", publicKey("stranger"+itoa(w.r.IntN(1000)))))
	w.volumes.abuses++
	return true
}
