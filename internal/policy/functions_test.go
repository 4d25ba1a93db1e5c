package policy

import (
	"strings"
	"testing"
)

func pathVerdict(path, dir string) string {
	switch ok, err := within(path, dir); {
	case err != nil:
		return "error"
	case ok:
		return "in"
	}
	return "out"
}

func TestARG01_NoPathClimbsOut(t *testing.T) {
	for path, want := range map[string]string{
		"internal/report.txt": "in", "internal/a/b": "in", "internal-evil/x": "out", "internalx": "out", "draft/x": "out", "internal": "error", "Internal/x": "error", "INTERNAL": "error", "internals/x": "out",
		"internal/../../etc/passwd": "error", "/etc/passwd": "error", "internal/b/../../..": "error", "internal/./x": "error", "../internal/x": "error",
		"internal//x": "error", "": "error", ".": "error", "./internal/x": "error", "~/internal/x": "error", "//internal/x": "error",
	} {
		if got := pathVerdict(path, "internal"); got != want {
			t.Errorf("%q: %s, want %s", path, got, want)
		}
	}
	if pathVerdict("a/b", ".") != "in" || pathVerdict("a/../b", ".") != "error" || pathVerdict("a/b", "") != "error" || pathVerdict("a/b", "a/") != "error" || pathVerdict("a/b", "/") != "error" {
		t.Error("the directory is taken as it should not be")
	}
}

func TestARG04_NoPathReadsTwoWays(t *testing.T) {
	for _, tail := range []string{
		"ok.txt\x00.sh", "a/", "a ", " a", "a.", "a\\b", "..\\b", "C:x", "a:stream", "a%2fb", "%2e%2e", "a\nb", "a\tb", "a\u2215b", "a\uff0fb", "a\u29f8b", "\uff0e\uff0e",
		"a\u2044b", "a\u202eb", "a\u200bb", "a\ufeffb", "a\xffb", "a\u00a0", "a\u2028b", "...", "a\uff3cb", "a /b", "a./b",
		"отчёт.txt", "보고서.md", "a/\ufe30/b", "a\u2105b", "\u2488", "e\u0301", "\u00e9", "SECRET~1/x", "--output=x", "-rf", "a/-x", "$HOME/x", "`id`", "*", "?", "a|b", "<a", "a>", "a\"b",
	} {
		if got := pathVerdict("internal/"+tail, "internal"); got != "error" {
			t.Errorf("%q: %s", tail, got)
		}
	}
	for _, tail := range []string{"ok.txt", "a b", "a-b_c", ".hidden", "a,b;c", "a+b(1)=@[x]{y}&z'#!"} {
		if got := pathVerdict("internal/"+tail, "internal"); got != "in" {
			t.Errorf("%q: %s", tail, got)
		}
	}
}

func TestR61_NamespacesBySegment(t *testing.T) {
	for _, row := range []struct{ name, pattern, want string }{
		{"notes", "notes.*", "true"}, {"notes.x", "notes.*", "true"}, {"notesevil", "notes.*", "false"}, {"notes.x", "notes", "false"}, {"notes", "notes", "true"},
		{"notes", "*", "error"}, {"notes", "notes*", "error"}, {"Notes", "notes.*", "error"}, {"notes.", "notes.*", "error"}, {"", "notes.*", "error"}, {"notes", ".*", "error"},
	} {
		ok, err := ns(row.name, row.pattern)
		got := map[bool]string{true: "true", false: "false"}[ok]
		if err != nil {
			got = "error"
		}
		if got != row.want {
			t.Errorf("%q of %q: %s", row.name, row.pattern, got)
		}
	}
}

func hostVerdict(url string) string {
	h, err := parseHost(url)
	if err != nil {
		return "error"
	}
	return h.Name + " " + h.Class
}

func TestARG08_NoUserInfo(t *testing.T) {
	for url, want := range map[string]string{
		"http://allowed.example@evil.example/": "error", "http://allowed.example:80@evil.example": "error", "http://allowed.example%40evil.example/": "error",
		"http://allowed.example\\@evil.example/": "error", "http://evil.example\\.allowed.example/": "error", "http://allowed.example#@evil.example/": "allowed.example name",
		"http://allowed.example?@evil.example/": "allowed.example name", "http://allowed.example/@evil": "allowed.example name", "http://allowed.example:80:90/": "error",
		"http://allowed.example:/": "error", "http://allowed.example:080/": "error", "http://allowed.example:65536/": "error", "http://allowed.example:+80/": "error",
		"http://allowed.example:8443/": "allowed.example name", "http:///x": "error", "http://": "error", "http://a b/": "error", "http://a\t.example/": "error", "http://a\n/": "error",
	} {
		if got := hostVerdict(url); got != want {
			t.Errorf("%q: %s, want %s", url, got, want)
		}
	}
}

func TestARG10_AddressesInOtherForms(t *testing.T) {
	for url, want := range map[string]string{
		"http://[::ffff:169.254.169.254]/": "169.254.169.254 link_local", "http://[64:ff9b::a9fe:a9fe]/": "64:ff9b::a9fe:a9fe link_local", "http://[::127.0.0.1]/": "::7f00:1 loopback",
		"http://[::ffff:127.0.0.1]/": "127.0.0.1 loopback", "http://[64:ff9b::7f00:1]/": "64:ff9b::7f00:1 loopback", "http://[64:ff9b::808:808]/": "64:ff9b::808:808 special",
		"http://[2002:7f00:1::]/": "2002:7f00:1:: loopback", "http://[::1]/": "::1 loopback", "http://[::ffff:0:7f00:1]/": "::ffff:0:7f00:1 loopback", "http://[::ffff:0:808:808]/": "::ffff:0:808:808 special", "http://[1::1]/": "1::1 special", "http://[4000::1]/": "4000::1 special", "http://[::]/": ":: special", "http://[fe80::1]/": "fe80::1 link_local", "http://[fe80::1%25eth0]/": "error",
		"http://[fd00::1]/": "fd00::1 private", "http://[2606:4700::1111]/": "2606:4700::1111 public", "http://[127.0.0.1]/": "error", "http://[::1/": "error", "http://[::1]x/": "error",
		"http://127.0.0.1/": "127.0.0.1 loopback", "http://127.1/": "error", "http://2130706433/": "error", "http://0x7f.0.0.1/": "error", "http://0x7f000001/": "error", "http://0177.0.0.1/": "error",
		"http://127.0.0.01/": "error", "http://10.0.0.1/": "10.0.0.1 private", "http://169.254.169.254/": "169.254.169.254 link_local", "http://0.0.0.0/": "0.0.0.0 special", "http://100.64.0.1/": "100.64.0.1 special",
		"http://8.8.8.8/": "8.8.8.8 public", "http://224.0.0.1/": "224.0.0.1 special", "http://255.255.255.255/": "255.255.255.255 special", "http://１２７.0.0.1/": "error",
		"http://localhost/": "localhost loopback", "http://LOCALHOST/": "localhost loopback", "http://localhost./": "error", "http://x.localhost/": "x.localhost loopback", "http://a.example./": "error",
		"http://a..example/": "error", "http://.example/": "error", "http://-a.example/": "error", "http://bücher.example/": "error", "http://xn--bcher-kva.example/": "xn--bcher-kva.example name", "http://a_b.example/": "error",
		"http://" + strings.Repeat("a", 64) + ".example/": "error",
	} {
		if got := hostVerdict(url); got != want {
			t.Errorf("%q: %s, want %s", url, got, want)
		}
	}
}

func TestARG13_SchemesWithoutCase(t *testing.T) {
	for url, want := range map[string]string{
		"FILE:///etc/passwd": "error", "javascript:alert(1)": "error", "http:evil.example": "error", "//evil.example/x": "error", "HTTPS://A.example": "https 443", "gopher://a.example": "gopher 0",
		"ht tp://a.example": "error", "1http://a.example": "error", "://a.example": "error", "h\u212Attp://a.example": "error", "": "error", "a.example": "error", "http:/a.example": "error", "http:\\\\a.example": "error",
	} {
		got := "error"
		if h, err := parseHost(url); err == nil {
			got = h.Scheme + map[int]string{443: " 443", 0: " 0"}[h.Port]
		}
		if got != want {
			t.Errorf("%q: %s, want %s", url, got, want)
		}
	}
}

func TestR61_MediaTypes(t *testing.T) {
	for s, want := range map[string]string{
		"image/png": "image/png", "Image/PNG": "image/png", "text/plain; charset=UTF-8": "text/plain", `text/plain;charset="a b"; q=1`: "text/plain", "text/plain ;a=b": "text/plain",
		"": "", "text": "", "text/": "", "/plain": "", "text/plain;": "", "text/plain; charset": "", "text/plain; a=b; A=c": "", "text/plain, text/html": "", "text/plain text/html": "",
		"text/plain\n": "", " text/plain": "", "text/plain; a=\"b": "", "text/plain; a=b c": "", "*/*": "*/*", "text/pl\u0430in": "", "text//plain": "", "text/plain; a=" + strings.Repeat("b", 600): "", "application/x-sh#.png": "application/x-sh#.png",
	} {
		got, err := mime(s)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v", s, got, err)
		}
	}
}

func FuzzWithin(f *testing.F) {
	f.Add("internal/../x", "internal")
	f.Add("internal/x", "internal")
	f.Fuzz(func(t *testing.T, path, dir string) {
		ok, err := within(path, dir)
		if err != nil || !ok {
			return
		}
		rest := path
		if dir != "." {
			rest = strings.TrimPrefix(path, dir+"/")
		}
		if dir != "." && rest == path || rest == "" || strings.ContainsAny(path, "\\\x00%:") || strings.HasPrefix(path, "/") {
			t.Fatalf("%q within %q", path, dir)
		}
		for _, segment := range strings.Split(path, "/") {
			if segment == "" || strings.Trim(segment, ".") == "" || strings.TrimSpace(segment) != segment {
				t.Fatalf("%q within %q", path, dir)
			}
		}
	})
}

func FuzzHost(f *testing.F) {
	for _, s := range []string{"https://a.example:8443/x", "http://[::ffff:127.0.0.1]/", "http://127.0.0.1", "http://a@b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, url string) {
		h, err := parseHost(url)
		if err != nil {
			return
		}
		if h.Name == "" || h.Name != strings.ToLower(h.Name) || h.Scheme != strings.ToLower(h.Scheme) || strings.ContainsAny(h.Name, "@/\\%# \x00") || h.Port < 0 || h.Port > 65535 || h.Class == "" {
			t.Fatalf("%q: %+v", url, h)
		}
		name := h.Name
		if strings.Contains(name, ":") {
			name = "[" + name + "]"
		}
		if again, err := parseHost(h.Scheme + "://" + name); err != nil || again.Name != h.Name || again.Class != h.Class {
			t.Fatalf("%q: %+v, then %+v, %v", url, h, again, err)
		}
	})
}

func FuzzMIME(f *testing.F) {
	f.Add(`text/plain; charset="utf-8"`)
	f.Fuzz(func(t *testing.T, s string) {
		essence, err := mime(s)
		if err != nil {
			return
		}
		if again, err := mime(essence); err != nil || again != essence || essence != strings.ToLower(essence) || strings.ContainsAny(essence, " ;,") {
			t.Fatalf("%q: %q, then %q, %v", s, essence, again, err)
		}
	})
}

func FuzzClause(f *testing.F) {
	f.Add(`args.tags.all(t, t.within("a")) && host(args.url).port == 443`, `{"path":"a","tags":["a/b"],"url":"https://a.example"}`)
	f.Add(`mandatory("policy.on") || args.size < 3`, `{"path":"a","size":3}`)
	p := clausePolicy(f)
	f.Fuzz(func(t *testing.T, clause, arguments string) {
		c, err := p.CompileClause("save", "c", clause)
		if (c == nil) == (err == nil) {
			t.Fatal(c, err)
		}
		a, bad := NewArguments([]byte(arguments))
		if err != nil || bad != nil {
			return
		}
		ok, err := c.Holds(a, &Facts{})
		if again, twice := c.Holds(a, &Facts{}); ok && err != nil || again != ok || (twice == nil) != (err == nil) {
			t.Fatalf("%v %v, then %v %v", ok, err, again, twice)
		}
	})
}
