package mutants

func init() {
	faults = append(faults,
		fault{
			name: "a token of a revoked key is taken", pkg: "internal/web", test: "TestR91_EntriesTakeAnAuditorsToken",
			patches: []patch{{"internal/web/tiles.go", `return who.PublicKey, ok && !who.Revoked`, `return who.PublicKey, ok`}},
		},
		fault{
			name: "a token is good for ever", pkg: "internal/wire", test: "TestTokens",
			patches: []patch{{"internal/wire/token.go", `expires <= at || expires-at`, `expires-at`}},
		},
		fault{
			name: "what a server did not give is a fault, or nothing", pkg: "internal/remote", test: "TestHostileServers",
			patches: []patch{{"internal/remote/verify.go", `if failure := l.Err(); failure != nil {`, `if failure := l.Err(); failure == nil && len(r.Faults) < 0 {`}},
		},
		fault{
			name: "a witness counts as often as it signs", pkg: "tools/verify", test: "TestR81_AQuorumOfWitnesses",
			patches: []patch{{"internal/audit/policy.go", `return string(o.key) == string(w.key) || o.id == w.id }):`, `return o.VKey == w.VKey && o.Label == f[0] }):`}},
		},
		fault{
			name: "a row of a mirror says anything of its event", pkg: "tools/verify", test: "TestR80_AMirrorsRowsSayWhatTheirEventsSay",
			patches: []patch{{"internal/audit/mirror.go", `return Line{Event: event, Seq: e.Seq, Wrong: wrong}`, `return Line{Event: event, Seq: e.Seq, Wrong: wrong[:0]}`}},
		},
		fault{
			name: "of two keys in force one signature is enough", pkg: "internal/audit", test: "TestR81_AKeyOutOfForceIsRefused",
			patches: []patch{{"internal/audit/keys.go", `i := max(at-1, 0); i <= at; i++ {`, `i := max(at, 0); i <= at; i++ {`}},
		},
	)
}
