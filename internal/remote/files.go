package remote

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"time"

	"github.com/ledgerd/ledgerd/internal/audit"
)

const (
	cacheBytesMax = 64 << 20
	cacheFilesMax = 1024
	aheadMax      = 3        // bundles fetched before they are asked for
	aheadBytes    = 32 << 20 // while no more than this is held
)

// cache holds the files read last: they are looked at, opened, and looked
// into for what lies beside them.
type cache struct {
	mu    sync.Mutex
	files map[audit.Path]*file
	order []audit.Path // oldest first
	bytes int
}

// file is a file being fetched, or fetched when done is closed.
type file struct {
	done chan struct{}
	data []byte
	err  error
	open []int // of a bundle, the entries that may have an open payload
}

func (c *cache) init() { c.files = map[audit.Path]*file{} }

// take returns a file, and whether it is the caller who fetches it.
func (c *cache) take(p audit.Path) (f *file, mine bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f := c.files[p]; f != nil {
		return f, false
	}
	f = &file{done: make(chan struct{})}
	c.files[p] = f
	c.order = append(c.order, p)
	return f, true
}

// put takes account of a file that was fetched, and lets the oldest go.
func (c *cache) put(f *file) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bytes += len(f.data)
	for i := 0; i < len(c.order) && (c.bytes > cacheBytesMax || len(c.order) > cacheFilesMax); {
		old := c.files[c.order[i]]
		select {
		case <-old.done:
			c.bytes -= len(old.data)
			delete(c.files, c.order[i])
			c.order = slices.Delete(c.order, i, i+1)
		default:
			i++
		}
	}
}

func (c *cache) held() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bytes
}

// read returns a file, from the server if need be.
func (l *Log) read(p audit.Path) (*file, error) {
	f, mine := l.cache.take(p)
	if mine {
		l.load(p, f)
	}
	<-f.done
	return f, f.err
}

func (l *Log) load(p audit.Path, f *file) {
	f.data, f.err = l.fetch(p)
	if p.Kind == audit.PathBundle && f.err == nil {
		var whole bool
		if f.open, whole = mayBeOpen(f.data, p.Width); !whole {
			f.err = l.tooBroken()
		}
	}
	l.cache.put(f)
	close(f.done)
}

// tooBroken counts a bundle that is none; a server that sends such without end
// is given up.
func (l *Log) tooBroken() error {
	l.mu.Lock()
	l.broken++
	n := l.broken
	l.mu.Unlock()
	if n > brokenMax {
		return l.fail(fmt.Errorf("it sent %d bundles that are none", n))
	}
	return nil
}

// ahead fetches the bundles after n, which will be asked for next.
func (l *Log) ahead(n uint64) {
	for next := n + 1; next <= n+aheadMax && l.cache.held() < aheadBytes; next++ {
		p := audit.BundleAt(l.size, next)
		if p.Width == 0 {
			return
		}
		if f, mine := l.cache.take(p); mine {
			go l.load(p, f)
		}
	}
}

// mayBeOpen lists the entries of a bundle whose payload may be an open one, so
// that a server is asked for no other. whole is false where it is no bundle.
func mayBeOpen(b []byte, width int) (list []int, whole bool) {
	for i := 0; len(b) >= 2; i++ {
		size := int(b[0])<<8 | int(b[1])
		if b = b[2:]; size > len(b) {
			return list, false
		}
		event := b[:size]
		if bytes.Contains(event, []byte(`"type":"policy.activated"`)) ||
			bytes.Contains(event, []byte(`"type":"memory.written"`)) && bytes.Contains(event, []byte(`"class":"mandatory"`)) {
			list = append(list, i)
		}
		b = b[size:]
		width--
	}
	return list, len(b) == 0 && width == 0
}

// content returns what the name of an export's file stands for. What the
// checkpoint does not cover is not asked for.
func (l *Log) content(name string) ([]byte, error) {
	p, ok := audit.ParsePath(name)
	switch {
	case !ok:
		return nil, fs.ErrNotExist
	case p.Kind == audit.PathCheckpoint:
		return l.signed, nil
	case !p.Within(l.size):
		return nil, fs.ErrNotExist
	case p.Kind == audit.PathPayload:
		n, i := (p.N-1)/256, int((p.N-1)%256)
		f, err := l.read(audit.BundleAt(l.size, n))
		if err != nil || !slices.Contains(f.open, i) {
			return nil, errors.Join(err, fs.ErrNotExist)
		}
	case p.Kind == audit.PathBundle:
		l.ahead(p.N)
	}
	f, err := l.read(p)
	if p.Kind == audit.PathBundle && err != nil && !errors.Is(err, fs.ErrNotExist) {
		l.lost(p.N)
		return nil, fs.ErrNotExist // the log ends here: what a checkpoint claims may have no end
	}
	return f.data, err
}

// lost takes note of the first bundle that could not be had.
func (l *Log) lost(n uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reached = min(l.reached, n*256)
}

// Open implements fs.FS.
func (l *Log) Open(name string) (fs.File, error) {
	if name == "." {
		return root{}, nil
	}
	b, err := l.content(name)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return &opened{stat{name, len(b)}, bytes.NewReader(b)}, nil
}

// Stat implements fs.StatFS.
func (l *Log) Stat(name string) (fs.FileInfo, error) {
	if name == "." {
		return root{}.Stat()
	}
	b, err := l.content(name)
	if err != nil {
		return nil, &fs.PathError{Op: "stat", Path: name, Err: err}
	}
	return stat{name, len(b)}, nil
}

type opened struct {
	stat
	*bytes.Reader
}

func (o *opened) Stat() (fs.FileInfo, error) { return o.stat, nil }
func (o *opened) Close() error               { return nil }
func (o *opened) Size() int64                { return o.stat.Size() }

// stat is a regular file's.
type stat struct {
	name string
	size int
}

func (s stat) Name() string       { return s.name }
func (s stat) Size() int64        { return int64(s.size) }
func (s stat) Mode() fs.FileMode  { return 0o444 }
func (s stat) ModTime() time.Time { return time.Time{} }
func (s stat) IsDir() bool        { return false }
func (s stat) Sys() any           { return nil }

// root is the directory, which a server does not list.
type root struct{}

type rootStat struct{ stat }

func (rootStat) Mode() fs.FileMode { return fs.ModeDir | 0o555 }
func (rootStat) IsDir() bool       { return true }

func (root) Stat() (fs.FileInfo, error)             { return rootStat{stat{name: "."}}, nil }
func (root) Read([]byte) (int, error)               { return 0, errors.New("a directory") }
func (root) Close() error                           { return nil }
func (root) ReadDir(int) (_ []fs.DirEntry, _ error) { return nil, nil }
