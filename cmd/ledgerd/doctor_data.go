package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nkeys"
	"golang.org/x/mod/sumdb/note"

	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/store"
)

const (
	keysCopy = "restore it from your copy of DIR/keys"

	// Where proposals stop, where all writing stops, and where ledgerd does not
	// start: see Options of internal/ledger and internal/store.
	controlFree = 64 << 20
	openFree    = 32 << 20

	slowSync     = 20 * time.Millisecond
	filesWanted  = 8192     // 4096 connections, tables, and room
	streamMost   = 8 << 30  // of the stream's own limit
	foldWarn     = 10 << 20 // events folded at the next start: some minutes
	payloadLooks = 256      // events looked at for one sealed payload
)

func (d *doctor) keyPath(name string) string { return filepath.Join(d.data, "keys", name) }

// readable reports whether this user may look at all: what may not be read is neither
// lost nor damaged.
func (d *doctor) readable() bool {
	for _, name := range []string{"", "db", "keys"} {
		dir := filepath.Join(d.data, name)
		_, err := os.ReadDir(dir)
		if errors.Is(err, fs.ErrPermission) {
			d.fail("directory", exitInternal, "look as "+ownerOf(dir)+", that ledgerd runs as", "this user, %d, may not look into it, and nothing was looked at: %s", os.Geteuid(), err)
			return false
		}
	}
	return true
}

// ownerOf is whose a file is, as far as that can be seen.
func ownerOf(path string) string {
	if info, err := os.Stat(path); err == nil {
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			return fmt.Sprintf("user %d", st.Uid)
		}
	}
	return "the user"
}

// directory looks at who may do what in the data directory.
func (d *doctor) directory() {
	info, err := os.Stat(d.data)
	if err != nil {
		d.fail("directory", exitInternal, "look as the user that ledgerd runs as", "%s", err)
		return
	}
	switch mode := info.Mode().Perm(); {
	case mode&0o022 != 0:
		d.fail("directory", exitInternal, "chmod 700 "+d.data, "mode %04o: others may write", mode)
	case mode&0o055 != 0:
		d.warn("directory", "chmod 700 "+d.data, "mode %04o: others may look in", mode)
	default:
		d.ok("directory", "mode %04o, of %s", mode, ownerOf(d.data))
	}
}

// keyFiles looks at the key files; whether they are this ledger's, log does.
func (d *doctor) keyFiles() {
	var open, gone []string
	for _, name := range d.keysWanted() {
		if _, err := os.Stat(d.keyPath(name)); err != nil {
			gone = append(gone, name)
		}
	}
	secret, _ := filepath.Glob(d.keyPath("*.key"))
	for _, path := range append(secret, d.keyPath("admin.nk")) {
		if info, err := os.Stat(path); err == nil && info.Mode().Perm()&0o077 != 0 {
			open = append(open, filepath.Base(path))
		}
	}
	if _, err := os.Stat(d.keyPath("admin.nk")); errors.Is(err, fs.ErrNotExist) {
		d.ok("admin-key", "not here; good, if it is kept elsewhere")
	}
	switch {
	case len(gone) > 0:
		d.fail("keys", exitInternal, keysCopy, "cannot be read: %s", strings.Join(gone, ", "))
	case len(open) > 0:
		d.fail("keys", exitInternal, "chmod 600 "+filepath.Join(d.data, "keys")+"/*; and ask who could read them", "others may read %s", strings.Join(open, ", "))
	default:
		d.ok("keys", "all there, for their owner alone")
	}
}

// keysWanted names the files of the keys in force, the first ones where the log
// cannot be asked.
func (d *doctor) keysWanted() []string {
	if d.own == nil {
		return []string{"checkpoint.vkey", "checkpoint.key", "permit.key", "seal.key"}
	}
	var names []string
	for kind, keys := range map[string][]projection.SigningKey{events.KeyCheckpoint: d.own.Checkpoint, events.KeyPermit: d.own.Permit} {
		for _, k := range keys {
			if kind == events.KeyCheckpoint {
				names = append(names, ledger.KeyFile(kind, k.Number, "vkey"))
			}
			if k.Until == 0 {
				names = append(names, ledger.KeyFile(kind, k.Number, "key"))
			}
		}
	}
	names = append(names, ledger.KeyFile(events.KeySeal, max(d.own.Seal, 1), "key"))
	slices.Sort(names)
	return names
}

// ownKeys reads which keys are in force.
func (d *doctor) ownKeys() {
	st, err := store.OpenReadOnly(d.data, store.Options{})
	if err != nil {
		return // log says so
	}
	defer st.Close()
	if own, err := ledger.ReadOwnKeys(d.data, st); err == nil {
		d.own = own
	}
}

// marks says what lies in the directory that keeps it from being served.
func (d *doctor) marks() {
	for _, m := range []struct{ file, detail, next string }{
		{ledger.ContinuedFile, "another epoch continues this log: it is not served", "serve that one; this one can be verified and exported"},
		{ledger.ManifestFile, "this is a backup: it is not served", "ledgerd restore --from " + d.data + " --data NEWDIR"},
		{ledger.RestoredFile, "restored from a backup: it is not served", nextEpoch(d.data)},
	} {
		if _, err := os.Lstat(filepath.Join(d.data, m.file)); err == nil {
			d.fail("served", exitIntegrity, m.next, "%s", m.detail)
			return
		}
	}
}

// leftovers finds what an init that was killed left beside the directory.
func (d *doctor) leftovers() {
	found, _ := filepath.Glob(filepath.Clean(d.data) + ".init-*")
	if len(found) > 0 {
		d.warn("leftovers", "no ledger was ever served from there: remove it if no init is running", "%s", strings.Join(found, ", "))
		return
	}
	d.ok("leftovers", "none")
}

// holder says who has the log open for writing, without trying the lock: that
// could keep a server from starting.
func (d *doctor) holder() {
	pid, err := lockHolder(filepath.Join(d.data, "db"))
	switch {
	case err != nil:
		d.warn("lock", "", "whether a server has the log open cannot be seen: %s", err)
	case pid == 0:
		d.ok("lock", "free: nothing serves this directory")
	default:
		d.ok("lock", "held by process %d", pid)
	}
	limit, whose, err := openFiles(pid)
	switch {
	case err != nil:
		d.warn("open-files", "", "the limit cannot be seen: %s", err)
	case limit < filesWanted:
		d.warn("open-files", "raise it: LimitNOFILE= in the unit, or ulimit -n", "%s may open %d files; %d connections and the log's tables take up to %d", whose, limit, 4096, filesWanted)
	default:
		d.ok("open-files", "%s may open %d", whose, limit)
	}
}

func (d *doctor) room() {
	var st syscall.Statfs_t
	if err := syscall.Statfs(d.data, &st); err != nil {
		d.fail("free-space", exitInternal, "look as the user that ledgerd runs as", "%s", err)
		return
	}
	free := st.Bavail * uint64(st.Bsize)
	const next = "free some space or grow the file system; ledgerd goes on by itself"
	switch {
	case free < openFree:
		d.fail("free-space", exitUnavailable, next, "%s: ledgerd does not even start", bytesText(free))
	case free < controlFree:
		d.fail("free-space", exitUnavailable, next, "%s: nothing is written", bytesText(free))
	case free < d.minFree:
		d.fail("free-space", exitUnavailable, next, "%s: proposals are refused below %s", bytesText(free), bytesText(d.minFree))
	case free < 4*d.minFree:
		d.warn("free-space", next, "%s; proposals are refused below %s", bytesText(free), bytesText(d.minFree))
	default:
		d.ok("free-space", "%s; proposals are refused below %s", bytesText(free), bytesText(d.minFree))
	}
}

// disk times the sync that every answer waits for, on a file without a name.
func (d *doctor) disk() {
	took, err := syncTimes(d.data)
	switch {
	case errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS):
		d.warn("disk", "look as the user that ledgerd runs as", "not timed: %s", err)
	case errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT):
		d.fail("disk", exitUnavailable, "free some space, or raise the quota", "full: %s", err)
	case err != nil:
		d.fail("disk", exitUnavailable, "see the kernel's log; do not restart on a disk that fails", "%s", err)
	case took[len(took)/2] > slowSync:
		d.warn("disk", "every answer waits for one: a disk with a cache that survives power loss, or fewer neighbours", "a sync takes %s, at most %s", took[len(took)/2], took[len(took)-1])
	default:
		d.ok("disk", "a sync takes %s, at most %s", took[len(took)/2], took[len(took)-1])
	}
}

func syncTimes(dir string) (took []time.Duration, err error) {
	f, err := os.CreateTemp(dir, ".doctor-")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := os.Remove(f.Name()); err != nil {
		return nil, err
	}
	for range 9 {
		start := time.Now()
		if _, err := f.Write(make([]byte, 4<<10)); err != nil {
			return nil, err
		}
		if err := syncData(f); err != nil {
			return nil, err
		}
		took = append(took, time.Since(start).Round(10*time.Microsecond))
	}
	slices.Sort(took)
	return took, nil
}

func (d *doctor) wallClock() {
	switch synced, err := clockSynced(); {
	case err != nil:
		d.warn("clock-sync", "", "cannot be seen: %s", err)
	case !synced:
		d.warn("clock-sync", "run a time daemon (chrony, systemd-timesyncd)", "the kernel's clock is not synchronised: it may drift, and jump when it is set")
	default:
		d.ok("clock-sync", "the kernel's clock is synchronised")
	}
}

// log opens the log beside whoever writes it and compares it with its keys and
// its anchor. The anchor is read first: the log only grows.
func (d *doctor) log() {
	path := d.anchor
	if path == "" {
		path = filepath.Join(d.data, "anchor")
	}
	signed, anchorErr := os.ReadFile(path)
	had := ledger.ReadSealKeys(d.data)
	st, err := store.OpenReadOnly(d.data, store.Options{})
	switch {
	case errors.Is(err, fs.ErrNotExist):
		d.fail("log", exitIntegrity, "is it a data directory? If it was one, restore a copy; see docs/OPERATIONS.md", "there is none: %s", plain(err))
		return
	case errors.Is(err, fs.ErrPermission):
		d.fail("log", exitInternal, "look as "+ownerOf(filepath.Join(d.data, "db"))+", that ledgerd runs as", "may not be read: %s", plain(err))
		return
	case err != nil:
		d.fail("log", exitIntegrity, "run verify --data "+d.data+" and keep the directory as it is", "%s", plain(err))
		return
	}
	defer st.Close()
	created, last, err := ends(st)
	if err != nil {
		d.fail("log", exitIntegrity, "run verify --data "+d.data+" and keep the directory as it is", "%s", plain(err))
		return
	}
	d.ok("log", "%d events of %s, the last at %s", st.Durable(), st.Origin(), last.Time)
	d.lastTime(last.Time)
	verifier := d.noteKeys(created)
	d.adminKey(created)
	d.sealKey(st, had)
	d.anchored(st, signed, anchorErr, verifier)
	d.engine(st, had)
}

// ends reads the first and the last event.
func ends(st *store.Store) (*events.LedgerCreated, events.Event, error) {
	var ends [2]events.Event
	for i, seq := range []uint64{1, st.Durable()} {
		b, err := st.Event(seq)
		if err == nil {
			ends[i], err = events.Parse(b)
		}
		if err != nil {
			return nil, events.Event{}, fmt.Errorf("event %d: %w", seq, err)
		}
	}
	created, ok := ends[0].Body.(*events.LedgerCreated)
	if !ok {
		return nil, events.Event{}, fmt.Errorf("event 1 is %s", ends[0].Body.Type())
	}
	return created, ends[1], nil
}

func (d *doctor) lastTime(last events.Time) {
	ahead := time.Until(last.Std())
	switch {
	case ahead > 2*time.Second:
		d.warn("clock", "set the clock; ledger time never runs back, and stands at its own pace until the clock is there",
			"the clock shows %s, %s before the last event", time.Now().UTC().Format(time.RFC3339), ahead.Round(time.Second))
	default:
		d.ok("clock", "the clock shows %s, not before the last event", time.Now().UTC().Format(time.RFC3339))
	}
}

// noteKeys looks whether the signing keys are those that the log names.
func (d *doctor) noteKeys(created *events.LedgerCreated) note.Verifier {
	checkpoint := []projection.SigningKey{{Number: 1, Public: created.CheckpointKey, From: 1}}
	permit := []projection.SigningKey{{Number: 1, Public: created.PermitKey, From: 1}}
	if d.own != nil {
		checkpoint, permit = d.own.Checkpoint, d.own.Permit
	}
	d.keysFit("checkpoint-key", events.KeyCheckpoint, checkpoint)
	d.keysFit("permit-key", events.KeyPermit, permit)
	verifier, err := note.NewVerifier(created.CheckpointKey)
	if err != nil {
		d.fail("checkpoint-key", exitIntegrity, "run verify --data "+d.data, "event 1 names no usable key: %s", err)
		return nil
	}
	return verifier
}

func (d *doctor) keysFit(check, kind string, keys []projection.SigningKey) {
	for _, k := range keys {
		err := ledger.KeyFits(d.keyPath(""), kind, k)
		switch {
		case err == nil && k.Until == 0:
			d.ok(check, "keys/%s is the one that event %d names", ledger.KeyFile(kind, k.Number, "key"), k.From)
		case err != nil && !errors.Is(err, fs.ErrNotExist): // keyFiles says what is not there
			d.fail(check, exitIntegrity, keysCopy, "%s", err)
		}
	}
}

func (d *doctor) adminKey(created *events.LedgerCreated) {
	seed, err := os.ReadFile(d.keyPath("admin.nk"))
	if err != nil {
		return
	}
	key, err := nkeys.FromSeed([]byte(strings.TrimSpace(string(seed))))
	if err != nil {
		d.warn("admin-key", keysCopy, "keys/admin.nk is no NATS seed")
		return
	}
	defer key.Wipe()
	if public, err := key.PublicKey(); err != nil || public != created.AdminPublicKey {
		d.warn("admin-key", "fine if the admin was given another key since", "keys/admin.nk is not the key that event 1 names")
		return
	}
	d.ok("admin-key", "keys/admin.nk is the first admin's; best kept elsewhere")
}

// sealKey opens one of the latest sealed payloads.
func (d *doctor) sealKey(st *store.Store, had ledger.SealKeys) {
	open, err := ledger.OpenPayloads(d.data, st, had)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			d.fail("seal-key", exitInternal, keysCopy, "%s", err)
		}
		return
	}
	for seq, looked := st.Durable(), 0; seq > 0 && looked < payloadLooks; seq, looked = seq-1, looked+1 {
		_, _, ok, err := open.Open(seq)
		if err != nil {
			d.fail("seal-key", exitIntegrity, "if keys/seal.key was changed, "+keysCopy+"; else see \"a payload does not open\" in docs/OPERATIONS.md", "%s", plain(err))
			return
		}
		if ok {
			d.ok("seal-key", "it opens the payload of event %d", seq)
			return
		}
	}
	d.ok("seal-key", "nothing sealed yet to try it on")
}

// verifiers are the key of event 1 and those that came after it.
func (d *doctor) verifiers(first note.Verifier) []note.Verifier {
	list := []note.Verifier{first}
	if d.own == nil {
		return list
	}
	for _, k := range d.own.Checkpoint {
		if v, err := note.NewVerifier(k.Public); err == nil && k.Number > 1 {
			list = append(list, v)
		}
	}
	return list
}

func (d *doctor) anchored(st *store.Store, signed []byte, err error, verifier note.Verifier) {
	if err != nil {
		d.fail("anchor", exitIntegrity, "restore the anchor, from its other place or an auditor's note; never make one up", "%s", err)
		return
	}
	if verifier == nil {
		return
	}
	cp, err := store.ParseCheckpoint(signed, d.verifiers(verifier)...)
	if err != nil {
		d.fail("anchor", exitIntegrity, "restore the anchor, from its other place or an auditor's note; never make one up", "%s", err)
		return
	}
	if cp.Size > st.Durable() {
		d.fail("anchor", exitIntegrity, "this is an older copy, or events were lost: see \"an old copy is refused\" in docs/OPERATIONS.md",
			"it signs %d events, the log ends at %d", cp.Size, st.Durable())
		return
	}
	root, err := st.Root(cp.Size)
	switch {
	case err != nil:
		d.fail("anchor", exitIntegrity, "run verify --data "+d.data, "%s", plain(err))
	case root != cp.Root:
		d.fail("anchor", exitIntegrity, "run verify --data "+d.data+" and keep the directory as it is", "the log is not the one that it signs, at %d", cp.Size)
	default:
		d.ok("anchor", "it signs %d events; %d came after it", cp.Size, st.Durable()-cp.Size)
	}
}

// engine looks at the format of the files and at what the next start costs.
func (d *doctor) engine(st *store.Store, had ledger.SealKeys) {
	stats, err := st.Stats()
	if err != nil {
		d.warn("format", "", "%s", plain(err))
		return
	}
	if stats.Format != store.NewestFormat {
		d.warn("format", "it is raised at the next start of a newer ledgerd; older ones then refuse the directory",
			"Pebble format %d, this program writes %d", stats.Format, store.NewestFormat)
	} else {
		d.ok("format", "Pebble format %d, %s in %d tables", stats.Format, bytesText(stats.DiskBytes), stats.Tables)
	}
	seq, ok, err := st.StateSeq()
	if _, fault := ledger.StoredState(d.data, st, had); err == nil && ok && fault != nil && !errors.Is(fault, fs.ErrNotExist) {
		d.warn("state", "nothing, if the keys are right: the next start folds the whole log and writes it anew", "what is written down cannot be used: %s", plain(fault))
		return
	}
	behind := st.Durable() - min(seq, st.Durable())
	switch {
	case err != nil:
		d.warn("state", "", "%s", plain(err))
	case behind > foldWarn:
		d.warn("state", "stop ledgerd in a quiet hour, cleanly: that leaves one", "the next start folds %d events", behind)
	case !ok:
		d.ok("state", "none is written down; the next start folds all %d events", behind)
	default:
		d.ok("state", "written down up to %d; the next start folds %d events", seq, behind)
	}
}

// stream sums up the stream's files. What is in them only the server that wrote
// them reads: a start holds it against the log.
func (d *doctor) stream() {
	const unread = "not looked into: a start compares it with the log, and refuses one that disagrees"
	var sum uint64
	if info, err := os.Stat(filepath.Join(d.data, "stream")); err == nil && !info.IsDir() {
		d.fail("stream", exitIntegrity, "move it away while ledgerd is stopped; the feed fills a new one", "%s is no directory", filepath.Join(d.data, "stream"))
		return
	}
	err := filepath.WalkDir(filepath.Join(d.data, "stream"), func(_ string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) { // the server removes files as it goes
			return nil
		}
		if err != nil || e.IsDir() {
			return err
		}
		if info, err := e.Info(); err == nil {
			sum += uint64(info.Size())
		}
		return nil
	})
	switch {
	case err != nil:
		d.warn("stream", "look as the user that ledgerd runs as", "%s", err)
	case sum > streamMost:
		d.warn("stream", "it may be removed while ledgerd is stopped; the feed fills it anew", "%s, more than its limit of %s", bytesText(sum), bytesText(streamMost))
	default:
		d.ok("stream", "%s of at most %s; %s", bytesText(sum), bytesText(streamMost), unread)
	}
}

func bytesText(n uint64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	v, i := float64(n), 0
	for v >= 1024 && i < len(units)-1 {
		v, i = v/1024, i+1
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", v), ".0") + " " + units[i]
}
