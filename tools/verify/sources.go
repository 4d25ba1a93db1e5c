package main

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/datadir"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/replay"
)

var dataSource = part{
	usage:  "  --data DIR         a ledger's data directory; its writer may be at work\n",
	flags:  func(a *arguments, f *flag.FlagSet) { f.StringVar(&a.data, "data", "", "") },
	source: "data",
	refuse: func(a *arguments, given map[string]bool) error {
		return refuseEmpty(given, "directory", map[string]string{"data": a.data, "export": a.export})
	},
	open: (*arguments).openData,
}

var exportSource = part{
	usage: `  --export DIR       a directory written by ledgerd export, or a file of ledgerd export --format jsonl or cloudevents, which has
                     no tiles and no payloads: what is not in it is not checked, and said
`,
	flags:  func(a *arguments, f *flag.FlagSet) { f.StringVar(&a.export, "export", "", "") },
	source: "export",
	open:   (*arguments).openExport,
}

func (a *arguments) openExport() (*subject, error) {
	info, err := os.Stat(a.export)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return openRows(a.export, info)
	}
	if has(a.export, "db", "anchor", "keys") && !has(a.export, "tile", "checkpoint") {
		return nil, fmt.Errorf("%s looks like a data directory; use --data", a.export)
	}
	fsys := os.DirFS(a.export)
	return &subject{
		verify: func(opts audit.Options) (*audit.Report, error) { return audit.VerifyExport(fsys, opts) },
		log:    func() (*audit.Source, error) { return audit.OpenExport(fsys) },
		judged: func() (replay.Source, error) { return exported(audit.OpenExport(fsys)) },
	}, nil
}

// openRows opens a file of lines.
func openRows(name string, info fs.FileInfo) (*subject, error) {
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is neither a directory nor a regular file, which is read at more than one place", name)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	rows, err := audit.OpenRows(f, info.Size())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s is no file of ledgerd export --format jsonl or cloudevents: %w", name, err), f.Close())
	}
	source := func() (*audit.Source, error) { return rows.Source(), nil }
	return &subject{
		verify: func(opts audit.Options) (*audit.Report, error) { return audit.VerifyRows(rows, opts) },
		log:    source,
		judged: func() (replay.Source, error) { return exported(source()) },
		close:  f.Close,
	}, nil
}

// has reports whether dir has something by one of the names.
func has(dir string, names ...string) bool {
	for _, name := range names {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			return true
		}
	}
	return false
}

func (a *arguments) openData() (*subject, error) {
	if _, err := os.Stat(a.data); err != nil {
		return nil, err
	}
	if has(a.data, "tile", "checkpoint") && !has(a.data, "db", "anchor", "keys") {
		return nil, fmt.Errorf("%s looks like an export; use --export", a.data)
	}
	witnessed := kept(filepath.Join(a.data, "witness", "quorum"), filepath.Join(a.data, "witness", "checkpoint")) // before the log, which only grows
	before := ledger.ReadSealKeys(a.data)
	d, err := datadir.Open(a.data)
	after := ledger.ReadSealKeys(a.data) // judging begins when the log has been read: a rotation may be over by then
	if damaged := datadir.Damaged(err); damaged != nil {
		for i := range damaged.Faults {
			damaged.Faults[i].Found = plain(damaged.Faults[i].Found)
		}
		return &subject{verify: func(audit.Options) (*audit.Report, error) { return damaged, nil }}, nil
	}
	if err != nil {
		return nil, err
	}
	if err := d.Store.DropLogs(); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	source := d.Source()
	return &subject{
		verify: func(opts audit.Options) (*audit.Report, error) {
			if source.Checkpoint == nil {
				source.Checkpoint = opts.Remembered // an anchor kept elsewhere
			}
			return audit.VerifyLog(source, opts)
		},
		log:    func() (*audit.Source, error) { return source, nil },
		judged: func() (replay.Source, error) { return replay.Stored(a.data, d.Store, before, after) },
		close:  d.Close,

		witnessed: witnessed,
	}, nil
}
