// Package tidy holds the house rules as tests: which package may import which,
// what the pure core may not touch, and what no file may hold.
package tidy

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/ledgerd/ledgerd/"

// floors gives every package its floor. An import may point to a lower floor
// only; sideways is what the second table lists.
var floors = map[string]int{
	"internal/reason": 0,
	"internal/events": 1,
	"internal/policy": 2, "internal/sop": 2, "internal/wire": 2,
	"internal/projection": 3, "internal/store": 3, "internal/audit": 3,
	"internal/ledger": 4, "internal/datadir": 4, "internal/remote": 4, "internal/witness": 4, "client": 4,
	"internal/natsapi": 5, "internal/replay": 5, "internal/trial": 5, "internal/web": 5,
	"internal/backup": 5, "internal/epoch": 5,
	"internal/bench": 6, "tools/verify": 6, "interop/sqlite": 7,
	"cmd/ledgerd": 7,
}

var sideways = map[string]bool{"internal/wire → internal/sop": true}

// forbidden lists what a package may not import though its floor would let it.
var forbidden = map[string][]string{
	"internal/audit": {"internal/policy", "internal/sop", "internal/projection", "internal/store", "internal/wire"},
	"client":         {"internal/policy", "internal/sop", "internal/projection", "internal/store"},
	"tools/verify":   {"internal/natsapi", "cmd/ledgerd"},
}

// soleImporter names the one package that may import a module.
var soleImporter = map[string]string{
	"github.com/cockroachdb/pebble":   "internal/store",
	"github.com/nats-io/nats-server":  "internal/natsapi",
	"github.com/prometheus":           "internal/web",
	"github.com/goccy/go-yaml":        "none: tests only",
	"github.com/spf13/cobra":          "cmd/ledgerd",
	"github.com/santhosh-tekuri":      "internal/policy",
	"cel.dev/cel-go":                  "internal/policy",
	"github.com/rogpeppe/go-internal": "cmd/ledgerd",
}

// core is the pure part: no I/O, clock, randomness or goroutine.
var core = map[string]bool{
	"internal/reason": true, "internal/events": true, "internal/policy": true, "internal/sop": true, "internal/projection": true,
}

var coreModules = map[string]bool{
	"github.com/nats-io/nkeys":                 true, // checks a key's form
	"github.com/santhosh-tekuri/jsonschema/v6": true, // with a loader that opens nothing
	"cel.dev/cel-go":                           true, // no function of it tells the time
	"golang.org/x/text":                        true,
}

var impure = map[string]bool{
	"os": true, "net": true, "net/http": true, "math/rand": true, "math/rand/v2": true, "crypto/rand": true,
	"io/fs": true, "path/filepath": true, "os/exec": true, "syscall": true, "log": true, "log/slog": true,
	"sync": true, "context": true, "runtime": true,
}

var impureTime = map[string]bool{
	"Now": true, "Since": true, "Until": true, "After": true, "AfterFunc": true, "Sleep": true, "NewTimer": true, "NewTicker": true, "Tick": true, "Local": true,
}

type source struct {
	path, pkg string
	file      *ast.File
	fset      *token.FileSet
	text      []byte
}

func (s source) test() bool { return strings.HasSuffix(s.path, "_test.go") }

func (s source) imports() []string {
	var list []string
	for _, i := range s.file.Imports {
		path, _ := strconv.Unquote(i.Path.Value)
		list = append(list, path)
	}
	return list
}

func sources(t *testing.T) []source {
	t.Helper()
	var list []source
	walk(t, func(path string, text []byte) {
		if !strings.HasSuffix(path, ".go") {
			return
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, text, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, source{path, filepath.ToSlash(filepath.Dir(path)), file, fset, text})
	})
	if len(list) < 50 {
		t.Fatalf("only %d Go files found: the walk is broken", len(list))
	}
	return list
}

// walk calls fn for every file of the project, by its path from the root.
func walk(t *testing.T, fn func(path string, text []byte)) {
	t.Helper()
	root := os.DirFS("../..")
	err := fs.WalkDir(root, ".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case !d.IsDir() && strings.HasSuffix(path, ".test"):
			return nil // a test binary left by a profile
		case d.IsDir() && (path == ".git" || d.Name() == "creds"):
			return fs.SkipDir
		case d.IsDir() || !d.Type().IsRegular():
			return nil
		}
		text, err := fs.ReadFile(root, path)
		if err == nil && bytes.IndexByte(text[:min(len(text), 512)], 0) < 0 { // what was built here is no source
			fn(path, text)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestImportsPointDownwards(t *testing.T) {
	for _, s := range sources(t) {
		from, known := floors[s.pkg]
		if s.test() || strings.HasSuffix(s.pkg, "/gen") {
			continue
		}
		if testSupport(s.pkg) {
			continue // what it may import is as free as in a test
		}
		if !known {
			t.Errorf("%s: package %s has no floor; give it one here", s.path, s.pkg)
		}
		for _, path := range s.imports() {
			to, ours := strings.CutPrefix(path, module)
			if !ours {
				continue
			}
			if testSupport(to) {
				t.Errorf("%s imports %s, which is for tests", s.path, to)
			}
			if floor, ok := floors[to]; (!ok || floor >= from) && !sideways[s.pkg+" → "+to] {
				t.Errorf("%s (floor %d) imports %s (floor %d): imports point downwards", s.path, from, to, floor)
			}
			for _, no := range forbidden[s.pkg] {
				if to == no {
					t.Errorf("%s imports %s, which it must not share", s.path, to)
				}
			}
		}
	}
}

// testSupport tells packages such as net/http/httptest from those that ship.
func testSupport(pkg string) bool { return strings.HasSuffix(pkg, "test") }

func TestModulesHaveOneImporter(t *testing.T) {
	for _, s := range sources(t) {
		for _, path := range s.imports() {
			for prefix, only := range soleImporter {
				if (path == prefix || strings.HasPrefix(path, prefix+"/")) && s.pkg != only && !s.test() {
					t.Errorf("%s imports %s; only %s does", s.path, path, only)
				}
			}
			if strings.HasPrefix(path, "github.com/stretchr/testify") || strings.Contains(path, "gomock") {
				t.Errorf("%s imports %s: the standard library's testing is enough", s.path, path)
			}
		}
	}
}

func isCore(s source) bool {
	return !s.test() && (core[s.pkg] || s.pkg == "internal/ledger" && strings.HasPrefix(filepath.Base(s.path), "decide"))
}

func TestTheCoreIsPure(t *testing.T) {
	files := 0
	for _, s := range sources(t) {
		if !isCore(s) {
			continue
		}
		files++
		for _, path := range s.imports() {
			third := strings.Contains(strings.SplitN(path, "/", 2)[0], ".") && !strings.HasPrefix(path, module)
			allowed := false
			for m := range coreModules {
				allowed = allowed || path == m || strings.HasPrefix(path, m+"/")
			}
			if impure[path] || third && !allowed {
				t.Errorf("%s imports %s: the core has no I/O, clock, randomness or goroutine", s.path, path)
			}
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				t.Errorf("%s: goroutine in the core", s.fset.Position(n.Pos()))
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" && impureTime[n.Sel.Name] {
					t.Errorf("%s: time.%s in the core", s.fset.Position(n.Pos()), n.Sel.Name)
				}
			}
			return true
		})
	}
	if files < 15 {
		t.Errorf("only %d files of the core were looked at", files)
	}
}

func TestNoDrawersNoLeftovers(t *testing.T) {
	drawer := regexp.MustCompile(`(^|/)(util|utils|common|helper|helpers|types|models|misc)(/|$)`)
	leftover := regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|X` + `XX)\b`)
	skip := regexp.MustCompile(`\bt\.Sk` + `ip(f|Now)?\(`)
	for _, s := range sources(t) {
		if drawer.MatchString(s.pkg) {
			t.Errorf("%s: name the package for the thing, not the drawer", s.pkg)
		}
		for i, line := range strings.Split(string(s.text), "\n") {
			if leftover.MatchString(line) {
				t.Errorf("%s:%d: leftover: %s", s.path, i+1, strings.TrimSpace(line))
			}
			if skip.MatchString(line) {
				t.Errorf("%s:%d: a test that skips shows nothing", s.path, i+1)
			}
		}
	}
}

// longFunctions may stay as long as they are, and no longer; everything else
// fits a screen and a bit.
const functionLinesMax = 80

func TestFunctionsFitAScreen(t *testing.T) {
	for _, s := range sources(t) {
		if s.test() {
			continue
		}
		for _, d := range s.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			lines := s.fset.Position(f.End()).Line - s.fset.Position(f.Pos()).Line + 1
			if lines > functionLinesMax {
				t.Errorf("%s: %s has %d lines, at most %d", s.fset.Position(f.Pos()), f.Name.Name, lines, functionLinesMax)
			}
		}
	}
}

func TestExportedThingsAreDocumented(t *testing.T) {
	for _, s := range sources(t) {
		if s.test() || s.file.Name.Name == "main" {
			continue
		}
		for _, d := range s.file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Name.IsExported() && d.Doc == nil && exportedReceiver(d) && d.Name.Name != "Error" && d.Name.Name != "String" {
					t.Errorf("%s: %s has no comment", s.fset.Position(d.Pos()), d.Name.Name)
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if ts, ok := spec.(*ast.TypeSpec); ok && ts.Name.IsExported() && d.Doc == nil && ts.Doc == nil {
						t.Errorf("%s: %s has no comment", s.fset.Position(ts.Pos()), ts.Name.Name)
					}
				}
			}
		}
	}
}

func exportedReceiver(f *ast.FuncDecl) bool {
	if f.Recv == nil {
		return true
	}
	t := f.Recv.List[0].Type
	if star, ok := t.(*ast.StarExpr); ok {
		t = star.X
	}
	id, ok := t.(*ast.Ident)
	return ok && id.IsExported()
}

func TestDocumentsAreTidy(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#:\s]+)(#[^)]*)?\)`)
	documents := 0
	walk(t, func(path string, text []byte) {
		if !strings.HasSuffix(path, ".md") {
			return
		}
		documents++
		titles, fenced := 0, false
		for _, line := range strings.Split(string(text), "\n") {
			if strings.HasPrefix(line, "```") {
				fenced = !fenced
			}
			if !fenced && strings.HasPrefix(line, "# ") {
				titles++
			}
		}
		if titles != 1 || fenced {
			t.Errorf("%s: %d titles, want one; open fence %v", path, titles, fenced)
		}
		for _, m := range link.FindAllSubmatch(text, -1) {
			target := filepath.Join("../..", filepath.Dir(path), string(m[1]))
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: link to %s leads nowhere", path, m[1])
			}
		}
	})
	if documents < 8 {
		t.Errorf("only %d documents found", documents)
	}
}

func TestNothingNamesTheWorkshop(t *testing.T) {
	words := [][]byte{[]byte("/wo" + "rk/"), []byte(".lib" + "rary"), []byte("/ro" + "ot/"), []byte("../sha" + "red")}
	walk(t, func(path string, text []byte) {
		if strings.HasPrefix(path, ".ci/") || strings.Contains(path, "testdata/fuzz/") {
			return
		}
		for _, w := range words {
			if bytes.Contains(text, w) {
				t.Errorf("%s: holds %q", path, w)
			}
		}
	})
}

// TestDependenciesHaveAReason keeps go.mod and its record in step.
func TestDependenciesHaveAReason(t *testing.T) {
	mod, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	record, err := os.ReadFile("../../docs/adr/0007-dependencies.md")
	if err != nil {
		t.Fatal(err)
	}
	direct := 0
	for _, line := range strings.Split(string(mod), "\n") {
		fields := strings.Fields(line)
		if len(fields) < 2 || !strings.Contains(fields[0], ".") || strings.Contains(line, "// indirect") || fields[0] == "module" {
			continue
		}
		direct++
		if !bytes.Contains(record, []byte("`"+fields[0]+"`")) {
			t.Errorf("%s is a direct dependency without a line in docs/adr/0007-dependencies.md", fields[0])
		}
	}
	if direct < 5 || direct > 15 {
		t.Errorf("%d direct dependencies, want 5 to 15", direct)
	}
	if bytes.Contains(mod, []byte("\nreplace")) || bytes.Contains(mod, []byte("\ntoolchain")) {
		t.Error("go.mod has a replace or toolchain line")
	}
}
