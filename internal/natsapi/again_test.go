package natsapi_test

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// What a request and its reply take is used again by others. Each reply is still
// that of its own request: many agents send many at once, no two alike.
func TestEachReplyIsOfItsOwnRequest(t *testing.T) {
	f := openFront(t)
	agents := []string{"worker0", "worker1", "worker2", "worker3"}
	for _, id := range agents {
		f.agents([2]string{id, ""})
	}
	const each, atOnce = 500, 100
	value := func(id string, i int) string { return strings.Repeat(id, 1+i%40) + strconv.Itoa(i) }
	rounds := []func(id string, i int) (operation, body, reason, resource, value string){
		func(id string, i int) (string, string, string, string, string) {
			key := fmt.Sprint("k", i)
			switch i % 5 {
			case 0:
				return "action.authorize", fmt.Sprintf(`{"action":"no.such","arguments":{"n":%d}%s}`, i, operationID(id, i)), "unknown_action", "no.such", ""
			case 1:
				return "memory.write", fmt.Sprintf(`{"owner_agent_id":%q,"namespace":"notes","key":%q}`, id, key), "malformed_request", "", ""
			case 2:
				return "memory.read", fmt.Sprintf(`{"namespace":"none","key":%q%s}`, key, operationID(id, i)), "record_unavailable", "none." + key, ""
			}
			return "memory.write", fmt.Sprintf(`{"owner_agent_id":%q,"namespace":"notes","key":%q,"value":%q%s}`, id, key, value(id, i), operationID(id, i)), "owner_write", id + ":notes." + key, value(id, i)
		},
		func(id string, i int) (string, string, string, string, string) {
			key := fmt.Sprint("k", i)
			if i%5 < 3 {
				return "memory.read", fmt.Sprintf(`{"namespace":"notes","key":%q%s}`, key, operationID(id, i)), "record_unavailable", "notes." + key, ""
			}
			return "memory.read", fmt.Sprintf(`{"namespace":"notes","key":%q%s}`, key, operationID(id, i)), "visible_from", "notes." + key, value(id, i)
		},
	}
	subs := map[string]*nats.Subscription{}
	for _, id := range agents {
		sub, err := f.conn(id).SubscribeSync("_INBOX." + id + ".again.*")
		if err != nil {
			t.Fatal(err)
		}
		subs[id] = sub
	}
	for n := range 2 * each {
		request := rounds[n/each]
		for _, id := range agents {
			operation, body, _, _, _ := request(id, n%each)
			if err := f.conn(id).PublishRequest("gov.main.propose."+id+"."+operation, fmt.Sprint("_INBOX.", id, ".again.", n%each), []byte(body)); err != nil {
				t.Fatal(err)
			}
		}
		if (n+1)%atOnce > 0 {
			continue
		}
		for _, id := range agents {
			for range atOnce {
				m, err := subs[id].NextMsg(20 * time.Second)
				if err != nil {
					t.Fatalf("%s: %v\n%s", id, err, f.log)
				}
				i, _ := strconv.Atoi(m.Subject[strings.LastIndexByte(m.Subject, '.')+1:])
				operation, body, reason, resource, value := request(id, i)
				isReplyTo(t, m, id, operation, body, reason, resource, value)
			}
		}
	}
}

// isReplyTo fails unless m is the reply to this very request.
func isReplyTo(t *testing.T, m *nats.Msg, id, operation, body, reason, resource, value string) {
	t.Helper()
	var r struct {
		Subject     string `json:"subject"`
		Operation   string `json:"operation"`
		OperationID string `json:"operation_id"`
		Resource    string `json:"resource"`
		Reason      string `json:"reason_code"`
		Record      struct {
			Value string `json:"value"`
			Owner string `json:"owner_agent_id"`
		} `json:"record"`
	}
	if err := json.Unmarshal(m.Data, &r); err != nil {
		t.Fatalf("%s: %v", m.Data, err)
	}
	header := reason
	if reason == "owner_write" || reason == "visible_from" {
		header = ""
	}
	if r.Subject != id || r.Operation != operation || r.Resource != resource || r.Reason != reason || r.Record.Value != value || value != "" && r.Record.Owner != id ||
		!strings.Contains(body, r.OperationID) || (r.OperationID != "") != strings.Contains(body, "operation_id") || m.Header.Get("Ledgerd-Reason") != header {
		t.Fatalf("the request of %s\n%s\nis answered %v\n%s", id, body, m.Header, m.Data)
	}
}

func operationID(id string, i int) string { return fmt.Sprintf(`,"operation_id":"op-%s-%d"`, id, i) }
