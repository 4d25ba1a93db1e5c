package natsapi

import (
	"net"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

// Requests waiting for a handler. Beyond pendingMessages the client library
// drops: the sender hears nothing and asks again with the same operation id. An
// inflow keeps it from coming so far, by reading no more while waitingMax wait:
// they then wait in the server, which slows their senders down.
const (
	pendingMessages = 65_536
	pendingBytes    = 256 << 20
	waitingMax      = 16_384
	idleMax         = time.Second // far longer than a handler is kept from running
)

// inflow is what a connection of ours has been sent and not yet handled. It is
// the connection's way into the server, for nats.InProcessServer.
type inflow struct {
	server  nats.InProcessConnProvider
	nc      atomic.Pointer[nats.Conn]
	handled atomic.Uint64
	lost    uint64 // messages that no handler of ours will count; of the reading goroutine
}

func (f *inflow) InProcessConn() (net.Conn, error) {
	conn, err := f.server.InProcessConn()
	return inflowConn{conn, f}, err
}

type inflowConn struct {
	net.Conn
	flow *inflow
}

func (c inflowConn) Read(b []byte) (int, error) {
	c.flow.wait()
	return c.Conn.Read(b)
}

// wait returns once few enough wait. It must not lock the connection, which reads
// the server's greeting with its lock held when it connects anew. If none is handled for a while, what seems
// to wait was sent to others on this connection, or was dropped.
func (f *inflow) wait() {
	nc := f.nc.Load()
	if nc == nil {
		return
	}
	since, last := time.Now(), f.handled.Load()
	for {
		in, handled := atomic.LoadUint64(&nc.InMsgs), f.handled.Load()
		waiting := int64(in - f.lost - handled)
		switch {
		case waiting < 0: // what seemed lost has been handled after all
			f.lost -= uint64(-waiting)
			return
		case waiting <= waitingMax:
			return
		case handled != last:
			since, last = time.Now(), handled
		case time.Since(since) > idleMax:
			f.lost += uint64(waiting)
			return
		}
		time.Sleep(time.Millisecond)
	}
}
