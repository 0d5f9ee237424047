package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gitvirt/gitvirt/apply/kubernetes"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/plan/policy"
	"github.com/gitvirt/gitvirt/reconciler/httpapi"
	"github.com/gitvirt/gitvirt/schemas"
)

func (c *cli) snapshotCommand() *cobra.Command {
	f := planFlags{}
	var server serverFlags
	var cluster bool
	command := &cobra.Command{
		Use:   "snapshot",
		Short: "Print what lives, for plans that are made elsewhere",
		Long: `Print as JSON what lives on this host, or with --kubernetes in the cluster that KUBECONFIG names, or what a running
controller knows (--server). "gitvirt plan --live FILE" plans against it: on a machine of CI, for one, which gets no way to the host and
can do nothing there. Sensitive values are not in it: no user data, no content of a Secret. What it tells are names of VMs and
nodes, what the VMs are made of, addresses, and paths of disks.

Exit codes: 0 done, 1 an error or an unreadable host.`,
		Example: `  gitvirt snapshot > live.json
  gitvirt plan ./fleet --live live.json
  gitvirt snapshot --server http://127.0.0.1:9471 > live.json
  gitvirt snapshot --kubernetes > live.json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			fleet := &schemas.Fleet{}
			if cluster {
				fleet.Spec.Platform = schemas.PlatformKubernetes
			}
			var live *plan.Live
			var err error
			if cmd.Flags().Changed("server") {
				live, err = server.live(cmd.Context())
			} else {
				live, err = c.lookAt(cmd.Context(), &f, fleet)
			}
			if err != nil {
				return err
			}
			return c.print(live, "json")
		},
	}
	f.agent.add(command)
	f.kube.add(command)
	server.add(command, c)
	command.Flags().BoolVar(&cluster, "kubernetes", false, "what lives in a cluster instead of on this host")
	command.MarkFlagsMutuallyExclusive("server", "kubernetes")
	return command
}

// lookAt reads what lives on the platform of a Fleet.
func (c *cli) lookAt(ctx context.Context, f *planFlags, fleet *schemas.Fleet) (*plan.Live, error) {
	platform, err := c.connectTo(ctx, f, fleet)
	if err != nil {
		return nil, err
	}
	defer platform.close()
	observed, err := platform.read(ctx)
	if err != nil {
		return nil, err
	}
	return plan.NewLive(observed, platform.pods, time.Now())
}

// live asks the controller.
func (f *serverFlags) live(ctx context.Context) (*plan.Live, error) {
	var raw json.RawMessage
	if err := f.fetch(ctx, httpapi.LivePath, &raw); err != nil {
		return nil, err
	}
	live, err := plan.DecodeLive(raw)
	if err != nil {
		return nil, fmt.Errorf("the controller at %s: %w", f.server, err)
	}
	return live, nil
}

// maxLive bounds what is read of what lives, in bytes: 5,000 VMs are about 20 MB.
const maxLive = 1 << 30

// readLive reads what gitvirt snapshot has printed: from a file, from the standard input ("-"), or from a controller (its URL).
func (c *cli) readLive(ctx context.Context, from string) (*plan.Live, error) {
	if strings.HasPrefix(from, "http://") || strings.HasPrefix(from, "https://") {
		server := serverFlags{server: from}
		return server.live(ctx)
	}
	in := c.stdin
	if from != "-" {
		file, err := os.Open(from)
		if err != nil {
			return nil, fmt.Errorf("reading what lives: %w", err)
		}
		defer func() { _ = file.Close() }() // it was only read
		in = file
	}
	content, err := io.ReadAll(io.LimitReader(in, maxLive+1))
	if err == nil && len(content) > maxLive {
		err = fmt.Errorf("%s is longer than %d MiB", from, maxLive>>20)
	}
	if err != nil {
		return nil, fmt.Errorf("reading what lives: %w", err)
	}
	live, err := plan.DecodeLive(content)
	if err != nil {
		return nil, fmt.Errorf("%s does not say what lives: %w", from, err)
	}
	return live, nil
}

// podsOf says how machines become Pods where something lived; nil where they do not.
func podsOf(live *plan.Live) (plan.Pods, error) {
	if len(live.Pods) == 0 {
		return nil, nil //nolint:nilnil // a host has none, which is no error
	}
	var pods kubernetes.InPods
	if err := json.Unmarshal(live.Pods, &pods); err != nil {
		return nil, fmt.Errorf("it does not say how machines become Pods: %w", err)
	}
	return pods, nil
}

// planLive plans one revision against what lived when somebody looked.
func (c *cli) planLive(ctx context.Context, f *planFlags) (*hostPlan, error) {
	live, err := c.readLive(ctx, f.live)
	if err != nil {
		return nil, err
	}
	snapshot, desired, err := c.read(ctx, &f.source, f.revision())
	if err != nil {
		return nil, err
	}
	desired, live.Observed = f.source.against(snapshot, desired, live.Observed)
	approvals, notes := c.approvals(ctx, &f.source, desired.Fleet)
	rules := policy.New(desired.Fleet, policy.Options{Now: time.Now(), Attended: f.attended, Approvals: approvals})
	options := plan.Options{Revision: snapshot.Revision, Provenance: snapshot.Provenance, Selection: f.selection, Policy: rules}
	if options.Pods, err = podsOf(live); err != nil {
		return nil, fmt.Errorf("%s: %w", f.live, err)
	}
	p, err := plan.Build(desired, live.Observed.For(desired.Fleet, options.Pods), options)
	if err != nil {
		return nil, err
	}
	p.Notes = append(append(p.Notes, notes...), f.source.stale...)
	p.Notes = append(p.Notes, fmt.Sprintf("compared with what lived at %s; the host was asked nothing, so what it cannot do is not said", live.Time.Format(time.RFC3339)))
	return &hostPlan{Plan: p, node: live.Observed.Node}, nil
}

// errLive says with what --live cannot be combined.
var errLive = errors.New("--live takes the place of the host, which --from needs none of and --out saves a plan for; leave one out")
