package nodeagent

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/nodeagent/cpus"
	"github.com/gitvirt/gitvirt/nodeagent/disks/diskfile"
	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
)

// checkLimit bounds the check of one step: a registry that does not answer is a problem of its own.
const checkLimit = 15 * time.Second

// Findings are what a look at a step found, in words for people.
type Findings struct {
	// Problems keep the step from being carried out now.
	Problems []string
	// NotLive is why the running guest cannot be changed live, although the step asks for that.
	NotLive string
	// Warnings are what may go wrong later: the host has promised more than it has.
	Warnings []string
}

// Check looks at a step, and changes nothing. The error is for a host that cannot be asked.
func (a *Agent) Check(ctx context.Context, request *api.ExecuteRequest) (Findings, error) {
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	e, err := a.newExecution(request, func(string) {})
	if err != nil {
		return Findings{Problems: []string{err.Error()}}, nil
	}
	c := &check{execution: e, need: map[string]int64{}, may: map[string]int64{}}
	if err := e.check(ctx); err != nil {
		return c.Findings, c.note(err)
	}
	if e.machine == nil || request.GetAdopt() != "" { // an adoption changes nothing that could be refused
		return Findings{}, nil
	}
	if err := c.host(); err != nil {
		return Findings{}, err
	}
	c.clashes()
	c.files(ctx)
	volumes := c.volumes(ctx)
	if err := c.definition(ctx, volumes); err != nil {
		return Findings{}, err
	}
	return c.Findings, nil
}

// check is one step that is looked at.
type check struct {
	*execution
	Findings
	assignment domainxml.Assignment
	// need is what would be written at once, may what guests may write in time, in bytes by folder.
	need, may map[string]int64
}

func (c *check) problem(format string, arguments ...any) {
	c.Problems = append(c.Problems, fmt.Sprintf(format, arguments...))
}

func (c *check) warn(format string, arguments ...any) {
	c.Warnings = append(c.Warnings, fmt.Sprintf(format, arguments...))
}

// note takes what would fail for a problem; that the hypervisor does not answer is none of the step's.
func (c *check) note(err error) error {
	if errors.Is(err, hypervisor.ErrUnavailable) || errors.Is(err, context.Canceled) {
		return err
	}
	if err != nil {
		c.problem("%s", err)
	}
	return nil
}

// host looks whether the host has what the VM needs: programs and devices, CPUs of its own, memory.
func (c *check) host() error {
	hosts, spec := c.agent.hosts, c.machine.spec()
	if err := hosts.check(spec); err != nil {
		c.problem("%s", err)
	}
	if c.now != nil && c.now.record != nil {
		c.assignment = c.now.record.Assignment
	}
	wants := wantedDevices(c.machine)
	switch {
	case hosts.pod != nil:
		chosen, err := c.chooseInPod(wants)
		if err := c.note(err); err != nil {
			return err
		}
		c.assignment = chosen
	case len(wants) > 0 || dedicated(spec):
		hosts.mu.Lock()
		chosen, err := c.tryToChoose(wants, c.assignment)
		hosts.mu.Unlock()
		if err := c.note(err); err != nil {
			return err
		}
		c.assignment = chosen
	}
	if power := c.request.GetPower(); power == "on" || power == "cycle" {
		if err := c.note(c.checkHugepages(c.assignment)); err != nil {
			return err
		}
	}
	if have, wanted := memoryOf(hosts.root), domainxml.GuestMemory(spec); have > 0 && wanted > have {
		c.problem("the guest wants %s of memory and the host has %s; ask for less in memory.guest, or use another host",
			diskfile.FormatBytes(int64(wanted)), diskfile.FormatBytes(int64(have))) //nolint:gosec // memory of machines
	}
	if have, err := cpus.Online(hosts.root); err == nil {
		if wanted, _ := domainxml.GuestCPUs(spec); wanted > have { // it runs, and KVM says as much in its log
			c.warn("the guest has %d vCPUs and the host %d CPUs; more than the host's make a guest slower, not faster", wanted, have)
		}
	}
	return nil
}

// memoryOf is the memory of a host in bytes; 0 when it cannot be read.
func memoryOf(root string) uint64 {
	file, err := os.Open(filepath.Join(root, "proc/meminfo"))
	if err != nil {
		return 0
	}
	defer func() { _ = file.Close() }() // it was only read
	for lines := bufio.NewScanner(file); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) > 1 && fields[0] == "MemTotal:" {
			kib, err := strconv.ParseUint(fields[1], 10, 64)
			if err != nil {
				return 0
			}
			return kib << 10
		}
	}
	return 0
}

// clashes looks for domains that have what must be this VM's alone: its MAC addresses, and its disks. Names and UUIDs are the
// hypervisor's to look at.
func (c *check) clashes() {
	identity := domainxml.IdentityOf(c.made, c.machine.spec())
	paths := map[string]string{}
	for _, source := range c.machine.spec().Volumes {
		planned := c.agent.volumes.planned(c.machine, source)
		if keeps(planned.Kind) && !shareable(c.machine.spec(), source) && !onlyReads(c.machine.spec(), source) && !c.machine.claim(source.Name).Shared {
			paths[planned.Path] = source.Name
		}
	}
	fleet := c.machine.wire.GetFleet()
	all, _ := c.agent.view.all()
	for _, other := range all {
		if foreign, ok := other.message.(*api.Foreign); ok && foreign.GetName() != c.name {
			for _, mac := range identity.MACs {
				if slices.Contains(foreign.GetMacs(), mac) {
					c.problem("domain %s, which is not gitvirt's, has the MAC address %s; give the interface another one", foreign.GetName(), mac)
				}
			}
		}
		if other.record == nil || other.domain.Name == c.name || other.record.Address == c.address {
			continue
		}
		for _, mac := range c.macsOf(other.record) {
			switch {
			case !slices.Contains(identity.MACs, mac):
			case other.record.Fleet != fleet:
				c.problem("%s of the fleet %q has the MAC address %s; give the interface another one", other.record.Address, other.record.Fleet, mac)
			default: // which may be on its way out: git has each address once
				c.warn("%s is still there and has the MAC address %s; networks take the two for one while both run", other.record.Address, mac)
			}
		}
		for _, volume := range other.record.Volumes {
			if name, used := paths[volume.Path]; used && keeps(volume.Kind) {
				c.problem("volume %s: %s has the disk %s; two guests that write one disk destroy it", name, other.record.Address, volume.Path)
			}
		}
	}
}

// macsOf are the MAC addresses of one of gitvirt's domains.
func (c *check) macsOf(record *domainxml.Record) []string {
	machine, err := c.agent.machineOf(record)
	if err != nil {
		return nil // its record cannot be read, which is told elsewhere
	}
	return domainxml.IdentityOf(record.Made(), machine.Spec).MACs
}

// files looks at what volumes are made of that are written from Secrets, ConfigMaps and the manifest.
func (c *check) files(ctx context.Context) {
	for _, source := range c.machine.spec().Volumes {
		if !madeOfFiles(source) || ctx.Err() != nil {
			continue
		}
		if _, err := content(c.machine, source); err != nil {
			c.problem("volume %s: %s", source.Name, err)
		}
	}
}

// volumes returns the volumes as they would be, and looks whether they could be made: images that can be had, disks that do not
// shrink, and room for all.
func (c *check) volumes(ctx context.Context) []domainxml.Volume {
	v, live := c.agent.volumes, c.live()
	var out []domainxml.Volume
	for _, source := range c.machine.spec().Volumes {
		planned := v.planned(c.machine, source)
		had := c.present(source)
		if kept := v.running(c.machine, source, live); kept != nil {
			grown, err := v.largest(c.machine, *kept, planned)
			if err != nil {
				c.problem("%s", err)
			}
			c.may[filepath.Dir(planned.Path)] += grown.Capacity - kept.Capacity
			out = append(out, grown)
			continue
		}
		if had != nil {
			planned = *had
		}
		v.check(ctx, c, source, planned, had != nil)
		out = append(out, planned)
	}
	c.kernel(ctx, &out)
	v.checkRoom(c)
	return out
}

// present is the volume as the VM's guest or definition has it, when its source is the same.
func (c *check) present(source kubevirtv1.Volume) *domainxml.Volume {
	for _, record := range c.live() {
		was, err := c.agent.machineOf(record)
		if err != nil {
			continue
		}
		same := slices.ContainsFunc(was.Spec.Volumes, func(other kubevirtv1.Volume) bool { return canonical(other) == canonical(source) })
		at := slices.IndexFunc(record.Volumes, func(volume domainxml.Volume) bool { return volume.Name == source.Name })
		if at >= 0 && (same || madeOfFiles(source)) {
			return &record.Volumes[at]
		}
	}
	return nil
}

// canonical is a volume as JSON: quantities that are equal may differ as values.
func canonical(volume kubevirtv1.Volume) string {
	encoded, err := json.Marshal(volume)
	if err != nil {
		return volume.Name // it always has a JSON form
	}
	return string(encoded)
}

// kernel looks at the files of kernelBoot.
func (c *check) kernel(ctx context.Context, out *[]domainxml.Volume) {
	container := kernelContainer(c.machine.spec())
	if container == nil {
		return
	}
	c.agent.volumes.checkKernel(ctx, c, container)
	volume := domainxml.Volume{Name: domainxml.KernelBootVolume, Kind: "kernelBoot"}
	if live := c.live(); len(live) > 0 {
		if at := slices.IndexFunc(live[0].Volumes, func(volume domainxml.Volume) bool { return volume.Name == domainxml.KernelBootVolume }); at >= 0 {
			volume = live[0].Volumes[at]
		}
	} else if container.KernelPath != "" {
		volume.Path = filepath.Join(c.agent.config.StateDir, "images", "kernel")
	}
	*out = append(*out, volume)
}

// definition has the hypervisor look at what would be defined, and works out how a running guest would become it.
func (c *check) definition(ctx context.Context, volumes []domainxml.Volume) error {
	var before *domainxml.Record
	if c.now != nil {
		before = c.now.record
	}
	record := c.record(volumes, before)
	record.Assignment = c.assignment
	document, err := c.render(record)
	if err == nil {
		err = c.agent.hypervisor.Validate(ctx, document)
	}
	if c.request.GetReplace() && errors.Is(err, hypervisor.ErrConflict) && !c.uuidTaken(record) {
		err = nil // all else is in order, and the domain in the way is the one that is replaced
	}
	if err != nil {
		return c.note(fmt.Errorf("the definition of %s: %w", c.name, err))
	}
	if !c.changesGuest() {
		return nil
	}
	_, err = c.operations(ctx, record)
	var not *notLiveError
	if errors.As(err, &not) {
		c.NotLive = not.reason
		return nil
	}
	return c.note(err)
}

// uuidTaken reports whether another domain has the UUID that a record's is to have.
func (c *check) uuidTaken(record *domainxml.Record) bool {
	wanted := cmp.Or(record.UUID, domainxml.IdentityOf(c.made, c.machine.spec()).UUID)
	all, _ := c.agent.view.all()
	return slices.ContainsFunc(all, func(other *seen) bool {
		return other.domain.Name != c.name && strings.EqualFold(other.domain.UUID, wanted)
	})
}
