package mutants

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Compiling and linking a test for each fault takes ten times as long as running
// it. So one build holds all faults: of a function that faults change it has the
// function as it is and, under another name, as each fault makes it, and on entry
// a switch to the one that the environment names. Without a name nothing differs.

const faultVariable = "LEDGERD_SEEDED_FAULT"

// function is a function or method of a source file.
type function struct {
	decl *ast.FuncDecl
	text string
}

// source is a file taken apart.
type source struct {
	text      string
	name      string // of the package
	functions map[string]function
	rest      string // all that is in no function
}

func readSource(text string) (*source, error) {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, "", text, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	s := &source{text: text, name: file.Name.Name, functions: map[string]function{}}
	at := 0
	for _, d := range file.Decls {
		decl, isFunction := d.(*ast.FuncDecl)
		if !isFunction || decl.Body == nil {
			continue
		}
		from, to := set.Position(decl.Pos()).Offset, set.Position(decl.End()).Offset
		s.functions[functionName(decl, text, set)] = function{decl, text[from:to]}
		s.rest += text[at:from]
		at = to
	}
	s.rest += text[at:]
	return s, nil
}

func functionName(decl *ast.FuncDecl, text string, set *token.FileSet) string {
	if decl.Recv == nil {
		return decl.Name.Name
	}
	t := decl.Recv.List[0].Type
	return text[set.Position(t.Pos()).Offset:set.Position(t.End()).Offset] + "." + decl.Name.Name
}

// variant is what a fault makes of a function.
type variant struct {
	fault    int
	function string
	text     string
}

var errNoSwitch = errors.New("the fault is not within functions")

// variants compares a file with what a fault makes of it.
func variants(fault int, was *source, text string) (list []variant, err error) {
	is, err := readSource(text)
	if err != nil {
		return nil, err
	}
	if is.rest != was.rest || len(is.functions) != len(was.functions) {
		return nil, errNoSwitch
	}
	for name, f := range is.functions {
		old, known := was.functions[name]
		if _, err := arguments(f.decl); !known || err != nil || name == "init" || strings.Contains(name, "[") {
			if !known || f.text != old.text {
				return nil, errNoSwitch
			}
			continue
		}
		if f.text != old.text {
			list = append(list, variant{fault, name, f.text})
		}
	}
	return list, nil
}

// arguments is what hands a function's parameters on.
func arguments(decl *ast.FuncDecl) (string, error) {
	var names []string
	for _, p := range decl.Type.Params.List {
		for _, n := range p.Names {
			if n.Name == "_" {
				return "", errNoSwitch
			}
			name := n.Name
			if _, variadic := p.Type.(*ast.Ellipsis); variadic {
				name += "..."
			}
			names = append(names, name)
		}
		if len(p.Names) == 0 {
			return "", errNoSwitch
		}
	}
	if decl.Recv != nil && (len(decl.Recv.List[0].Names) == 0 || decl.Recv.List[0].Names[0].Name == "_") || decl.Type.TypeParams != nil {
		return "", errNoSwitch
	}
	return strings.Join(names, ", "), nil
}

// withSwitches is a file with all that faults make of its functions.
func (s *source) withSwitches(list []variant) string {
	byFunction := map[string][]variant{}
	for _, v := range list {
		byFunction[v.function] = append(byFunction[v.function], v)
	}
	text := s.text
	var added strings.Builder
	for _, name := range slices.Sorted(maps.Keys(byFunction)) {
		f := s.functions[name]
		args, _ := arguments(f.decl)
		call := ""
		if f.decl.Recv != nil {
			call = f.decl.Recv.List[0].Names[0].Name + "."
		}
		var cases strings.Builder
		for _, v := range byFunction[name] {
			renamed := fmt.Sprintf("%s__%d", f.decl.Name.Name, v.fault)
			if f.decl.Type.Results == nil {
				fmt.Fprintf(&cases, " case %d: %s%s(%s); return;", v.fault, call, renamed, args)
			} else {
				fmt.Fprintf(&cases, " case %d: return %s%s(%s);", v.fault, call, renamed, args)
			}
			at := int(f.decl.Name.Pos() - f.decl.Pos())
			fmt.Fprintf(&added, "\n\n%s%s%s", v.text[:at], renamed, v.text[at+len(f.decl.Name.Name):])
		}
		brace := int(f.decl.Body.Lbrace-f.decl.Pos()) + 1
		text = strings.Replace(text, f.text, f.text[:brace]+" switch seededFault {"+cases.String()+" };"+f.text[brace:], 1)
	}
	return text + added.String() + "\n"
}

// allInOne writes an overlay that holds every fault of the list that lies within
// functions, and returns it and which those are, by index.
func allInOne(root, dir string, list []fault) (overlayFile string, held map[int]bool, err error) {
	held = map[int]bool{}
	sources := map[string]*source{}
	of := map[string][]variant{}
	for i, f := range list {
		texts, err := patched(root, f.patches)
		if err != nil {
			return "", nil, err
		}
		found := map[string][]variant{}
		whole := true
		for file, text := range texts {
			if sources[file] == nil {
				b, err := os.ReadFile(filepath.Join(root, file))
				if err != nil {
					return "", nil, err
				}
				if sources[file], err = readSource(string(b)); err != nil {
					return "", nil, err
				}
			}
			v, err := variants(i+1, sources[file], text)
			whole = whole && err == nil
			found[file] = v
		}
		if !whole {
			continue
		}
		held[i] = true
		for file, v := range found {
			of[file] = append(of[file], v...)
		}
	}
	texts := map[string]string{}
	for file, v := range of {
		s := sources[file]
		texts[file] = s.withSwitches(v)
		texts[path.Join(path.Dir(file), "seeded_fault.go")] = "package " + s.name + "\n\nimport (\"os\"; \"strconv\")\n\n" +
			"var seededFault, _ = strconv.Atoi(os.Getenv(" + strconv.Quote(faultVariable) + "))\n"
	}
	overlayFile, err = writeOverlay(root, dir, texts)
	return overlayFile, held, err
}

// patched are the files that a fault changes, as it makes them.
func patched(root string, patches []patch) (map[string]string, error) {
	texts := map[string]string{}
	for _, p := range patches {
		text, again := texts[p.file]
		if !again {
			b, err := os.ReadFile(filepath.Join(root, p.file))
			if err != nil {
				return nil, err
			}
			text = string(b)
		}
		if n := strings.Count(text, p.old); n != 1 {
			return nil, fmt.Errorf("the text to replace stands %d times in %s, want once:\n%s", n, p.file, p.old)
		}
		texts[p.file] = strings.Replace(text, p.old, p.new, 1)
	}
	return texts, nil
}

// writeOverlay writes files into dir and returns the one that tells the go
// command to read them in the place of those under root.
func writeOverlay(root, dir string, texts map[string]string) (string, error) {
	replace := map[string]string{}
	for file, text := range texts {
		to := filepath.Join(dir, fmt.Sprintf("%d_%s", len(replace), filepath.Base(file)))
		if err := os.WriteFile(to, []byte(text), 0o600); err != nil {
			return "", err
		}
		replace[filepath.Join(root, file)] = to
	}
	var b bytes.Buffer
	if err := json.NewEncoder(&b).Encode(map[string]any{"Replace": replace}); err != nil {
		return "", err
	}
	name := filepath.Join(dir, "overlay.json")
	return name, os.WriteFile(name, b.Bytes(), 0o600)
}
