package client

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
)

// The journal is the file of an EffectStore: the line journalHead, then frames.
// A frame is frameMark, the length of its payload and the CRC-32C of it (both
// u32, big-endian), and the payload: records, one JSON object a line. A frame
// is written and synced before the next is begun, so only the last one can be
// torn, and a bad one with a good one behind it is damage.
const (
	journalHead = "ledgerd effects 1\n"
	frameMark   = "\x00LE1"
	frameHead   = len(frameMark) + 8
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// What a record says of its effect.
const (
	isStarted      = "started"
	isDone         = "done"
	isAcknowledged = "acknowledged"
	isRefused      = "refused"
	isResolved     = "resolved"
)

// record is one line of the journal. An effect's first one names its order.
type record struct {
	Op     string          `json:"operation_id"`
	Is     string          `json:"is"`
	At     int64           `json:"at"` // Unix time in milliseconds
	Run    string          `json:"run_id,omitempty"`
	Step   string          `json:"step_id,omitempty"`
	Action string          `json:"action,omitempty"`
	Digest []byte          `json:"digest,omitempty"` // SHA-256 of the order
	Note   string          `json:"note,omitempty"`   // of refused the reason code, of resolved the outcome
	Report json.RawMessage `json:"report,omitempty"`
}

func (r record) valid() bool {
	switch r.Is {
	case isStarted, isAcknowledged, isResolved, isRefused:
		return r.Op != ""
	case isDone:
		return r.Op != "" && len(r.Report) > 0
	}
	return false
}

// journal is open for one writer at a time; read may run beside write.
type journal struct {
	path   string
	file   *os.File
	size   int64 // of the whole frames
	failed error // the first failure of a write; there is no second try
}

// openJournal reads the file at path, if there is one, gives each record with
// its place to take, and cuts off a torn end.
func openJournal(path string, take func(r record, at int64, size int)) (*journal, error) {
	if err := os.Remove(path + ".new"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	j := &journal{path: path, file: file}
	if err := j.load(take); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return j, nil
}

func (j *journal) load(take func(record, int64, int)) error {
	b, err := io.ReadAll(j.file)
	if err != nil {
		return err
	}
	if len(b) == 0 { // a new one is never seen with half a head
		return j.rewrite(func(func(record) (int64, int, error)) error { return nil })
	}
	if !bytes.HasPrefix(b, []byte(journalHead)) {
		return fmt.Errorf("%w: %s does not begin as one", ErrStoreDamaged, j.path)
	}
	at := len(journalHead)
	for at < len(b) {
		payload, ok := frameAt(b, at)
		if !ok {
			break
		}
		if err := j.lines(payload, int64(at+frameHead), take); err != nil {
			return err
		}
		at += frameHead + len(payload)
	}
	j.size = int64(at)
	if at == len(b) {
		return nil
	}
	for i := at + 1; ; i++ {
		next := bytes.Index(b[i:], []byte(frameMark))
		if next < 0 {
			break
		}
		if i += next; whole(b, i) {
			return fmt.Errorf("%w: %s: the frame at byte %d is bad, and one follows at %d", ErrStoreDamaged, j.path, at, i)
		}
	}
	if err := j.file.Truncate(j.size); err != nil {
		return err
	}
	return j.file.Sync()
}

func frameAt(b []byte, at int) (payload []byte, ok bool) {
	if !bytes.HasPrefix(b[at:], []byte(frameMark)) || len(b)-at < frameHead {
		return nil, false
	}
	head := b[at+len(frameMark):]
	size := int64(binary.BigEndian.Uint32(head))
	if size == 0 || int64(len(b)-at-frameHead) < size {
		return nil, false
	}
	payload = b[at+frameHead:][:size]
	return payload, crc32.Checksum(payload, castagnoli) == binary.BigEndian.Uint32(head[4:])
}

func whole(b []byte, at int) bool {
	_, ok := frameAt(b, at)
	return ok
}

// lines reads the records of a payload that begins at byte base of the file.
func (j *journal) lines(payload []byte, base int64, take func(record, int64, int)) error {
	for len(payload) > 0 {
		line, rest, ok := bytes.Cut(payload, []byte("\n"))
		r, err := readRecord(line)
		if !ok || err != nil {
			return fmt.Errorf("%w: %s: the record at byte %d: %v", ErrStoreDamaged, j.path, base, err)
		}
		take(r, base, len(line)+1)
		base += int64(len(line) + 1)
		payload = rest
	}
	return nil
}

func readRecord(line []byte) (r record, err error) {
	if err = json.Unmarshal(line, &r); err == nil && !r.valid() {
		err = fmt.Errorf("%q is no record", r.Is)
	}
	return r, err
}

// write appends one frame and returns, once it is durable, where its records
// stand: one place more than there are records.
func (j *journal) write(records []record) (places []int64, err error) {
	if j.failed != nil {
		return nil, j.failed
	}
	b, places, err := encodeFrame(records, j.size)
	if err == nil {
		_, err = j.file.WriteAt(b, j.size)
	}
	if err == nil {
		err = j.file.Sync()
	}
	if err != nil {
		j.failed = fmt.Errorf("%w: %w", ErrStoreFailed, err)
		return nil, j.failed
	}
	j.size += int64(len(b))
	return places, nil
}

func encodeFrame(records []record, at int64) (b []byte, places []int64, err error) {
	var out bytes.Buffer
	out.Write(make([]byte, frameHead))
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false) // a report is sent again as it was sent first
	for _, r := range records {
		places = append(places, at+int64(out.Len()))
		if err := encoder.Encode(r); err != nil {
			return nil, nil, err
		}
	}
	places = append(places, at+int64(out.Len()))
	b = out.Bytes()
	copy(b, frameMark)
	binary.BigEndian.PutUint32(b[len(frameMark):], uint32(len(b)-frameHead))
	binary.BigEndian.PutUint32(b[len(frameMark)+4:], crc32.Checksum(b[frameHead:], castagnoli))
	return b, places, nil
}

// read returns the record at a place that write or load told.
func (j *journal) read(at int64, size int) (record, error) {
	b := make([]byte, size)
	if _, err := j.file.ReadAt(b, at); err != nil {
		return record{}, fmt.Errorf("%s at byte %d: %w", j.path, at, err)
	}
	r, err := readRecord(b)
	if err != nil {
		return record{}, fmt.Errorf("%w: %s: the record at byte %d: %v", ErrStoreDamaged, j.path, at, err)
	}
	return r, nil
}

// rewrite replaces the file by a new one with what fill puts into it. The old
// one stays until the new one is durable.
func (j *journal) rewrite(fill func(put func(record) (at int64, size int, err error)) error) error {
	file, err := os.OpenFile(j.path+".new", os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return j.fail(err)
	}
	next := &journal{path: j.path, file: file, size: int64(len(journalHead))}
	if _, err := file.WriteAt([]byte(journalHead), 0); err != nil {
		return j.fail(errors.Join(err, file.Close()))
	}
	err = fill(func(r record) (int64, int, error) {
		b, places, err := encodeFrame([]record{r}, next.size)
		if err == nil {
			_, err = file.WriteAt(b, next.size)
		}
		if err != nil {
			return 0, 0, err
		}
		next.size += int64(len(b))
		return places[0], int(places[1] - places[0]), nil
	})
	if err == nil {
		err = file.Sync()
	}
	if err == nil {
		err = os.Rename(j.path+".new", j.path)
	}
	if err == nil {
		err = syncDir(filepath.Dir(j.path))
	}
	if err != nil {
		return j.fail(errors.Join(err, file.Close()))
	}
	old := j.file
	j.file, j.size = next.file, next.size
	return old.Close()
}

func (j *journal) fail(err error) error {
	j.failed = fmt.Errorf("%w: %w", ErrStoreFailed, err)
	return j.failed
}

func (j *journal) close() error { return j.file.Close() }

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
