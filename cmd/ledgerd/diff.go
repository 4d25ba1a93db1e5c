package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/ledgerd/ledgerd/client"
	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/datadir"
	"github.com/ledgerd/ledgerd/internal/events"
	"github.com/ledgerd/ledgerd/internal/policy"
	"github.com/ledgerd/ledgerd/internal/projection"
	"github.com/ledgerd/ledgerd/internal/replay"
)

// differences is what a policy file would change.
type differences struct {
	Changes []string `json:"changes"`
	*replay.Rejudged
}

func (a *app) diffCommand() *cobra.Command {
	var data, export string
	var last uint64
	cmd := &cobra.Command{
		Use:   "diff FILE",
		Short: "Show what a policy file would change, and which past decisions would go otherwise",
		Long: `Show what FILE would change of the policy in force and of the agents it names, and
with --last N which of the last N proposals of agents would have been decided
otherwise. Each is judged against the state it was judged against, under the
candidate; what it would have changed for the ones after it is not followed.

The policy in force is the server's, or that of --data or --export. To judge again
the requests are needed, which no server gives out: --last goes with --data, where
all are, or --export, where only those are that the decisions themselves tell. What
could not be judged is counted. Nothing is changed.`,
		Example: `  ledgerd diff policy.yaml
  ledgerd diff policy.yaml --data ./data --last 1000`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if data != "" && export != "" {
				return usagef("--data or --export, one of them")
			}
			if last > 0 && data+export == "" {
				return usagef("--last judges requests again, which a server gives to nobody; give --data DIR or --export DIR")
			}
			c, err := a.candidate(args[0])
			if err != nil {
				return err
			}
			if data+export == "" {
				return a.diffServer(cmd.Context(), c)
			}
			rejudged, err := rejudge(data, export, c.Candidate, last)
			if err != nil {
				return err
			}
			return a.showDifferences(differences{changesTo(rejudged.State, c), rejudged}, last)
		},
	}
	cmd.Flags().StringVar(&data, "data", "", "a data directory to compare with; its ledger may be at work")
	cmd.Flags().StringVar(&export, "export", "", "an export to compare with")
	cmd.Flags().Uint64Var(&last, "last", 0, "judge the last N proposals again")
	return cmd
}

// candidate is what a policy file would put in force.
type candidate struct {
	replay.Candidate
	resources []policy.Resource
}

// resourceChanges says which resources a file would change.
func (c candidate) resourceChanges(known func(id string) (policy.Resource, bool)) (list []string) {
	for _, r := range c.resources {
		switch was, ok := known(r.ID); {
		case !ok:
			list = append(list, "resource "+r.ID+" is new")
		case !was.Equal(r):
			list = append(list, "resource "+r.ID+" is changed")
		}
	}
	return list
}

// candidate reads a policy file, which must hold a policy.
func (a *app) candidate(name string) (candidate, error) {
	parts, err := a.readDocuments([]string{name})
	if err != nil {
		return candidate{}, err
	}
	c := candidate{Candidate: replay.Candidate{Agents: map[string]*policy.Agent{}}}
	for _, p := range parts {
		switch {
		case p.doc.Policy != nil:
			c.Policy = p.doc.Policy
		case p.doc.Agent != nil:
			c.Agents[p.doc.Agent.ID] = p.doc.Agent
		case p.doc.Resource != nil:
			c.resources = append(c.resources, *p.doc.Resource)
		}
	}
	if c.Policy == nil {
		return c, usagef("%s holds no Policy to compare", name)
	}
	return c, nil
}

func rejudge(data, export string, c replay.Candidate, last uint64) (*replay.Rejudged, error) {
	if data != "" {
		d, err := datadir.Open(data)
		if err != nil {
			return nil, openFault(data, err)
		}
		defer d.Close()
		src, err := replay.Stored(data, d.Store)
		if err != nil {
			return nil, err
		}
		return replay.Rejudge(src, c, last)
	}
	s, err := audit.OpenExport(os.DirFS(export))
	if err != nil {
		return nil, usagef("%w", err)
	}
	return replay.Rejudge(replay.Source{Size: s.Size, Events: s.Events, Payload: func(seq uint64) (salt [events.SaltLen]byte, b []byte, ok bool, err error) {
		p, err := s.Payload(seq)
		return p.Salt, p.Bytes, p.State == audit.PayloadReadable, err
	}}, c, last)
}

func changesTo(s *projection.State, c candidate) []string {
	list := policy.Differences(s.Policy, c.Policy)
	for _, id := range slices.Sorted(maps.Keys(c.Agents)) {
		was := (*policy.Agent)(nil)
		if agent := s.Agent(id); agent != nil {
			was = &policy.Agent{Parent: parentOf(agent), Capabilities: agent.Declared, Use: agent.Use, Writes: agent.Writes, Restrictions: agent.Restrictions}
		}
		list = append(list, policy.AgentDifferences(was, c.Agents[id])...)
	}
	var misfits []string
	s.Restricted(func(agent *projection.Agent, r policy.Restriction) {
		misfits = append(misfits, policy.Misfits(c.Policy, agent.ID, []policy.Restriction{r})...)
	})
	slices.Sort(misfits)
	list = append(list, misfits...)
	return append(list, c.resourceChanges(s.Resource)...)
}

func parentOf(a *projection.Agent) string {
	if a.Parent == nil {
		return ""
	}
	return a.Parent.ID
}

// diffServer compares with what a server has in force.
func (a *app) diffServer(ctx context.Context, c candidate) error {
	return a.withClient(ctx, func(ctx context.Context, conn *client.Client) error {
		var was *policy.Policy
		inForce, err := conn.Policy(ctx, 0)
		if err == nil {
			was, err = policy.Load([]byte(inForce.Document))
		}
		if err != nil && !missing(err) {
			return err
		}
		list := policy.Differences(was, c.Policy)
		agents, _, err := conn.Agents(ctx, "")
		if err != nil {
			return err
		}
		known := map[string]*policy.Agent{}
		var misfits []string
		for _, agent := range agents {
			a := &policy.Agent{Parent: agent.ParentID, Capabilities: policy.NewSet(agent.Capabilities...), Use: policy.NewSet(agent.Use...), Writes: policy.NewSet(agent.Writes...)}
			for _, r := range agent.Restrictions {
				a.Restrictions = append(a.Restrictions, policy.Restriction{ID: r.ID, Action: r.Action, Text: r.Require})
			}
			known[agent.AgentID] = a
			if !agent.Revoked {
				misfits = append(misfits, policy.Misfits(c.Policy, agent.AgentID, a.Restrictions)...)
			}
		}
		for _, id := range slices.Sorted(maps.Keys(c.Agents)) {
			list = append(list, policy.AgentDifferences(known[id], c.Agents[id])...)
		}
		list = append(list, misfits...)
		registry := map[string]policy.Resource{}
		if len(c.resources) > 0 {
			all, _, err := conn.Resources(ctx)
			if err != nil {
				return err
			}
			for _, r := range all {
				registry[r.ID] = policy.Resource{ID: r.ID, Classification: r.Classification, Owner: r.Owner, Tags: r.Tags}
			}
		}
		list = append(list, c.resourceChanges(func(id string) (policy.Resource, bool) { r, ok := registry[id]; return r, ok })...)
		return a.showDifferences(differences{Changes: list}, 0)
	})
}

func (a *app) showDifferences(d differences, last uint64) error {
	if d.Changes == nil {
		d.Changes = []string{}
	}
	return a.showStruct(d, func() {
		for _, change := range d.Changes {
			fmt.Fprintln(a.stdout, clean(change))
		}
		fmt.Fprintf(a.stdout, "%d differences\n", len(d.Changes))
		if last == 0 || d.Rejudged == nil {
			return
		}
		w := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
		for _, f := range d.Flips {
			fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s → %s\n", f.Seq, clean(f.Agent), clean(f.Operation), clean(f.Resource), clean(f.Was), clean(f.Would))
		}
		w.Flush()
		fmt.Fprintf(a.stdout, "%d of %d decisions judged again would go otherwise\n", len(d.Flips), d.Judged)
		for _, why := range slices.Sorted(maps.Keys(d.Unjudged)) {
			fmt.Fprintf(a.stdout, "%d could not be judged again: %s\n", d.Unjudged[why], clean(why))
		}
	})
}
