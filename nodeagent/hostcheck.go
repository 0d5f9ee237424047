package nodeagent

import (
	"context"
	"errors"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"

	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/nodeagent/disks/diskfile"
	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
	"github.com/gitvirt/gitvirt/nodeagent/images"
)

// check implements volumeStore.
func (v *hostVolumes) check(ctx context.Context, c *check, source kubevirtv1.Volume, planned domainxml.Volume, had bool) {
	switch {
	case source.ContainerDisk != nil:
		v.checkImage(ctx, c, source.Name, source.ContainerDisk.Image, source.ContainerDisk.ImagePullSecret, imageOptions(source.ContainerDisk, c.progress))
	case had:
	default:
		if info, err := os.Stat(planned.Path); errors.Is(err, os.ErrNotExist) {
			c.may[filepath.Dir(planned.Path)] += planned.Capacity
		} else if err == nil && planned.Format == "raw" && info.Mode().IsRegular() && keeps(planned.Kind) {
			c.may[filepath.Dir(planned.Path)] += max(0, planned.Capacity-info.Size())
		}
	}
}

// checkImage looks whether a container image can be had, and adds what would be fetched of it.
func (v *hostVolumes) checkImage(ctx context.Context, c *check, what, reference, secret string, options images.GetOptions, paths ...string) {
	keychain, err := c.machine.keychain(secret)
	if err != nil {
		c.problem("%s: %s", what, err)
		return
	}
	options.Keychain = keychain
	fetch, err := v.images.Available(ctx, reference, options, paths...)
	switch {
	case ctx.Err() != nil:
		c.problem("%s: the source of %s does not answer within %s; see that the host reaches it", what, reference, checkLimit)
	case err != nil:
		c.problem("%s: %s", what, err)
	}
	c.need[filepath.Join(v.files.Dir, "images")] += fetch
}

// checkKernel implements volumeStore.
func (v *hostVolumes) checkKernel(ctx context.Context, c *check, container *kubevirtv1.KernelBootContainer) {
	paths := slices.DeleteFunc([]string{container.KernelPath, container.InitrdPath}, func(path string) bool { return path == "" })
	v.checkImage(ctx, c, "kernelBoot", container.Image, container.ImagePullSecret, images.GetOptions{PullPolicy: images.PullPolicy(container.ImagePullPolicy)}, paths...)
}

// checkRoom looks whether what is written at once has room on the host's file systems, and warns when what guests may write in time
// has not: images grow as guests write, and promising more than there is is what people do.
func (v *hostVolumes) checkRoom(c *check) {
	type system struct{ free, need, may int64 }
	systems := map[string]*system{}
	on := func(dir string) *system {
		for dir != "/" {
			if _, err := os.Stat(dir); err == nil {
				break
			}
			dir = filepath.Dir(dir)
		}
		if systems[dir] == nil {
			free, err := diskfile.Free(dir)
			if err != nil {
				free = math.MaxInt64 // nobody knows
			}
			systems[dir] = &system{free: free}
		}
		return systems[dir]
	}
	for dir, bytes := range c.need {
		on(dir).need += bytes
	}
	for dir, bytes := range c.may {
		on(dir).may += bytes
	}
	for _, dir := range slices.Sorted(maps.Keys(systems)) {
		switch s := systems[dir]; {
		case s.need > s.free:
			c.problem("%s has %s free, and up to %s would be written there; make room, or ask for less", dir, diskfile.FormatBytes(s.free), diskfile.FormatBytes(s.need))
		case s.may > 0 && s.need+s.may > s.free:
			c.warn("%s has %s free, and the volumes may grow by %s; a guest stops when it is full", dir, diskfile.FormatBytes(s.free), diskfile.FormatBytes(s.may))
		}
	}
}
