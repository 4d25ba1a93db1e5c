package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/ledgerd/ledgerd/client"
	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/wire"
)

func (a *app) payloadCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "payload", Short: "As admin: erase what lies beside the log, or hold it from being erased"}
	cmd.AddCommand(a.payloadErase(), a.payloadHold(), a.payloadRelease(), a.payloadList())
	return cmd
}

// erasureTarget is what the commands of payload are about.
type erasureTarget struct {
	agent  string
	record string
	seqs   []string
}

func (t *erasureTarget) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&t.agent, "agent", "", "all that is this agent's")
	cmd.Flags().StringVar(&t.record, "record", "", "every value that a record had, OWNER:NAMESPACE.KEY")
	cmd.Flags().StringSliceVar(&t.seqs, "seq", nil, "the payload beside this event")
}

// parse reads the one target that is given.
func (t *erasureTarget) parse() (seqs []uint64, owner, namespace, key string, err error) {
	given := 0
	for _, is := range []bool{t.agent != "", t.record != "", len(t.seqs) > 0} {
		if is {
			given++
		}
	}
	if given != 1 {
		return nil, "", "", "", usagef("of what? give one of --agent ID, --record OWNER:NAMESPACE.KEY and --seq N")
	}
	for _, text := range t.seqs {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil || n == 0 {
			return nil, "", "", "", usagef("--seq %q: it is the number of an event", text)
		}
		seqs = append(seqs, n)
	}
	slices.Sort(seqs)
	if t.agent != "" {
		return nil, t.agent, "", "", checkID("agent", t.agent)
	}
	if t.record != "" {
		var name string
		owner, name, _ = strings.Cut(t.record, ":")
		dot := max(strings.LastIndexByte(name, '.'), 0)
		namespace, key = name[:dot], strings.TrimPrefix(name[dot:], ".")
		if !events.ValidID(owner) || !events.ValidNamespace(namespace) || !events.ValidKey(key) {
			return nil, "", "", "", usagef("--record %q: it is OWNER:NAMESPACE.KEY, like researcher:notes.draft", t.record)
		}
	}
	return slices.Compact(seqs), owner, namespace, key, nil
}

func (a *app) payloadErase() *cobra.Command {
	var t erasureTarget
	var r client.EraseRequest
	cmd := &cobra.Command{
		Use:   "erase (--agent ID | --record OWNER:NAMESPACE.KEY | --seq N) --basis BASIS",
		Short: "Destroy payloads: the log stays, and says that they were erased",
		Long: `Destroy payloads, each with its salt, so that nothing in the log tells what they
were: one by its event's number, every value that a record had, or all of an agent's
with its data key. A record whose value goes is gone. The command returns when the
bytes are off the ledger's disk. Backups and exports with payloads it does not reach.

Never erased are policies, mandatory records, and the requests that made agents,
principals and keys. A hold, a run that is still open, and the policy's
retention_days stand in the way.

BASIS stands in the log for ever: court_order, mistake, retention_end or
subject_request. Nothing there names the person; --comment is kept sealed.`,
		Example: `  ledgerd payload erase --record researcher:notes.draft --basis subject_request --dry-run --as admin --creds data/keys/admin.nk
  ledgerd payload erase --agent researcher --basis subject_request --as admin --creds data/keys/admin.nk`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			seqs, owner, namespace, key, err := t.parse()
			if err != nil {
				return err
			}
			if !slices.Contains(events.Bases(), r.Basis) {
				return usagef("--basis %q: it is %s", r.Basis, strings.Join(events.Bases(), ", "))
			}
			r.Meta, r.Seqs = a.meta(), seqs
			if namespace == "" {
				r.AgentID = owner
				return a.decided(cmd.Context(), func(ctx context.Context, c *client.Client) (*client.Reply, error) { return c.Erase(ctx, r) })
			}
			return a.withClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				return a.eraseRecord(ctx, c, r, owner, namespace, key)
			})
		},
	}
	t.flags(cmd)
	cmd.Flags().StringVar(&r.Basis, "basis", "", "the ground: "+strings.Join(events.Bases(), ", "))
	cmd.Flags().StringVar(&r.Comment, "comment", "", "for people; kept sealed with the request")
	cmd.Flags().BoolVar(&r.DryRun, "dry-run", false, "show what would be erased, and erase nothing")
	return cmd
}

// eraseRecord erases every payload that held a value of a record, as many at a
// time as one request takes.
func (a *app) eraseRecord(ctx context.Context, c *client.Client, r client.EraseRequest, owner, namespace, key string) error {
	list, err := c.Payloads(ctx, owner, namespace, key)
	if err != nil {
		return err
	}
	var seqs []uint64
	for _, p := range list {
		if p.State != "erased" && p.State != "never" {
			seqs = append(seqs, p.Seq)
		}
	}
	if len(seqs) == 0 {
		return notFound("a payload that held a value of %s:%s.%s, and is not erased", owner, namespace, key)
	}
	slices.Sort(seqs)
	for chunk := range slices.Chunk(seqs, wire.EraseSeqsMax) {
		r.Seqs = chunk
		reply, err := c.Erase(ctx, r)
		if err != nil {
			return err
		}
		if err := a.showReply(reply); err != nil {
			return err
		}
		r.Meta.OperationID = "" // each request has its own
	}
	return nil
}

func (a *app) payloadHold() *cobra.Command {
	return a.holdCommand("hold", "Keep payloads from being erased", `Keep payloads from being erased until they are released: all of an agent's, a
record's values, or the payload beside one event. Nothing else is kept: what expires
or is deleted is gone as ever, with its payload left beside the log.`,
		(*client.Client).PlaceHold)
}

func (a *app) payloadRelease() *cobra.Command {
	return a.holdCommand("release", "Let go of what a hold keeps, named as it was held", `Let go of what a hold keeps, named as it was held. Other holds on the same stay.`,
		(*client.Client).LiftHold)
}

func (a *app) holdCommand(name, short, long string, send func(*client.Client, context.Context, client.HoldRequest) (*client.Reply, error)) *cobra.Command {
	var t erasureTarget
	var r client.HoldRequest
	cmd := &cobra.Command{
		Use:     name + " (--agent ID | --record OWNER:NAMESPACE.KEY | --seq N)",
		Short:   short,
		Long:    long,
		Example: `  ledgerd payload ` + name + ` --record researcher:notes.draft --comment "case 17" --as admin --creds data/keys/admin.nk`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			seqs, owner, namespace, key, err := t.parse()
			switch {
			case err != nil:
				return err
			case len(seqs) > 1:
				return usagef("--seq: one at a time")
			case len(seqs) == 1:
				r.Seq = seqs[0]
			case namespace == "":
				r.AgentID = owner
			default:
				r.Owner, r.Namespace, r.Key = owner, namespace, key
			}
			r.Meta = a.meta()
			return a.decided(cmd.Context(), func(ctx context.Context, c *client.Client) (*client.Reply, error) { return send(c, ctx, r) })
		},
	}
	t.flags(cmd)
	cmd.Flags().StringVar(&r.Comment, "comment", "", "for people; kept sealed with the request")
	return cmd
}

func (a *app) payloadList() *cobra.Command {
	return &cobra.Command{
		Use:   "list [AGENT | OWNER:NAMESPACE.KEY]",
		Short: "Show what is held, or what lies beside the log and is an agent's or a record's",
		Long: `Show what is held from being erased; or, of an agent or a record, every payload that
lies or lay beside the log, and what may become of it: kept, erased, held, in_use (by
an open run), retained (not as old as the policy has it kept), never (it is never
erased). That reads the log from its start.`,
		Example: `  ledgerd payload list --as admin --creds data/keys/admin.nk
  ledgerd payload list researcher:notes.draft --as admin --creds data/keys/admin.nk`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return a.withClient(cmd.Context(), a.listHolds)
			}
			t := erasureTarget{agent: args[0]}
			if strings.Contains(args[0], ":") {
				t = erasureTarget{record: args[0]}
			}
			_, owner, namespace, key, err := t.parse()
			if err != nil {
				return err
			}
			return a.withClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				list, err := c.Payloads(ctx, owner, namespace, key)
				if missing(err) {
					return notFound("agent %s, or it is not in what %s may see", owner, a.as)
				}
				if err != nil {
					return err
				}
				if a.output == "jsonl" {
					return showLines(a, list)
				}
				return a.showStruct(append([]client.Payload{}, list...), func() { a.payloadTable(list) })
			})
		},
	}
}

func (a *app) payloadTable(list []client.Payload) {
	w := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
	defer w.Flush()
	fmt.Fprintln(w, "SEQ\tTIME\tAGENT\tOF\tRECORD\tSTATE\tUNDER")
	for _, p := range list {
		under := ""
		if p.Under > 0 {
			under = fmt.Sprintf("#%d", p.Under)
		}
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\t%s\n", p.Seq, clean(p.Time), clean(p.AgentID), clean(p.Of), clean(p.Record), clean(p.State), under)
	}
}

func (a *app) listHolds(ctx context.Context, c *client.Client) error {
	list, err := c.Holds(ctx)
	if err != nil {
		return err
	}
	if a.output == "jsonl" {
		return showLines(a, list)
	}
	return a.showStruct(append([]client.Hold{}, list...), func() {
		w := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
		defer w.Flush()
		fmt.Fprintln(w, "AGENT\tRECORD\tPAYLOAD\tPLACED")
		for _, h := range list {
			record, payload := "", ""
			if h.Namespace != "" {
				record = h.Namespace + "." + h.Key
			}
			if h.Payload > 0 {
				payload = strconv.FormatUint(h.Payload, 10)
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t#%d\n", clean(h.AgentID), clean(record), payload, h.Placed)
		}
	})
}

// erasedRows says in a reply's table what was erased.
func erasedRows(w *tabwriter.Writer, e *client.Erased) {
	what := "would be erased"
	switch {
	case e == nil:
		return
	case e.Under > 0:
		what = "erased"
		row(w, "under", fmt.Sprintf("#%d", e.Under))
	case e.AgentID == "" && len(e.Seqs) == 0:
		row(w, "erased", "nothing: it is erased already")
		return
	}
	if e.AgentID != "" {
		row(w, what, fmt.Sprintf("all of %s before event %d that may be, and its data key", e.AgentID, e.Before))
	} else {
		row(w, what, fmt.Sprintf("%d payloads: %s", len(e.Seqs), strings.Trim(fmt.Sprint(e.Seqs), "[]")))
	}
	for _, record := range e.Records {
		row(w, "record", record+", gone")
	}
	if e.Pending {
		row(w, "pending", "the bytes are not off the disk yet; the next start looks after it")
	}
}
