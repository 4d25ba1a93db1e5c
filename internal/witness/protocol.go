package witness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/ledgerd/ledgerd/internal/audit"
)

const (
	requestTimeout = 10 * time.Second
	answerBytesMax = 16 << 10
)

func newClient() *http.Client {
	return &http.Client{
		Timeout: requestTimeout,
		Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, DialContext: (&net.Dialer{Timeout: requestTimeout}).DialContext, ForceAttemptHTTP2: true,
			TLSHandshakeTimeout: requestTimeout, ResponseHeaderTimeout: requestTimeout, MaxResponseHeaderBytes: answerBytesMax, DisableCompression: true, IdleConnTimeout: time.Minute,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// cosign submits a checkpoint of which the witness should know the one of size
// old. Where it knows another size it says so, and is asked once more.
func (s *Submitter) cosign(ctx context.Context, w audit.PolicyWitness, old uint64, note []byte) (cosigned []byte, at time.Time, state State, err error) {
	size := audit.SizeOf(note)
	for try := 1; ; try++ {
		if old > size {
			return nil, at, Refused, fmt.Errorf("it has cosigned %d events of this log, which has %d: this is an older copy, or there are two", old, size)
		}
		request, err := s.request(old, size, note)
		if err != nil {
			return nil, at, Unavailable, err
		}
		code, answer, err := s.post(ctx, w.URL+"/add-checkpoint", request)
		if err != nil {
			return nil, at, Unavailable, err
		}
		switch code {
		case http.StatusOK:
			cosigned, at, err := w.AddCosignatures(note, answer)
			if err != nil {
				return nil, at, Unavailable, err
			}
			return cosigned, at, Cosigned, nil
		case http.StatusConflict:
			known, err := knownSize(answer)
			if err != nil || try == 2 {
				return nil, at, Unavailable, errors.Join(fmt.Errorf("it knows another size than %d", old), err)
			}
			old = known
			continue
		case http.StatusUnprocessableEntity:
			return nil, at, Refused, fmt.Errorf("422: the log of %d events does not continue the %d that it cosigned", size, old)
		case http.StatusForbidden, http.StatusNotFound, http.StatusBadRequest:
			return nil, at, Refused, fmt.Errorf("%d: it does not take this log or this key", code)
		}
		return nil, at, Unavailable, fmt.Errorf("%d", code)
	}
}

// request is the body of add-checkpoint: the size the witness knows, the
// consistency proof, an empty line, the note.
func (s *Submitter) request(old, size uint64, note []byte) ([]byte, error) {
	var b bytes.Buffer
	fmt.Fprintf(&b, "old %d\n", old)
	if old > 0 && old < size {
		proof, err := tlog.ProveTree(int64(size), int64(old), tlog.HashReaderFunc(s.o.Hashes))
		if err != nil {
			return nil, fmt.Errorf("prove that %d continues %d: %w", size, old, err)
		}
		for _, h := range proof {
			b.WriteString(h.String() + "\n")
		}
	}
	b.WriteByte('\n')
	b.Write(note)
	return b.Bytes(), nil
}

func knownSize(answer []byte) (uint64, error) {
	text, ok := strings.CutSuffix(string(answer), "\n")
	n, err := strconv.ParseUint(text, 10, 53)
	if !ok || err != nil {
		return 0, errors.New("its answer names no size")
	}
	return n, nil
}

func (s *Submitter) post(ctx context.Context, url string, body []byte) (code int, answer []byte, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	reply, err := s.client.Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer reply.Body.Close()
	answer, err = io.ReadAll(io.LimitReader(reply.Body, answerBytesMax+1))
	if err == nil && len(answer) > answerBytesMax {
		err = fmt.Errorf("an answer of over %d bytes", answerBytesMax)
	}
	return reply.StatusCode, answer, err
}
