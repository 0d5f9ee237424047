package nodeagent

import (
	"context"
	"errors"
	"path/filepath"
	"strings"

	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
)

// sweep removes what steps and guests left behind that ended early.
func (a *Agent) sweep(ctx context.Context) {
	if err := errors.Join(a.sweepCredentials(ctx), a.sweepDevices(ctx)); err != nil && ctx.Err() == nil {
		a.config.Logger.Warn("cannot remove what is left of VMs", "error", err)
	}
}

// pruneImages gives back the space of container disks that no VM on this host is based on, those that are off
// included. While the host cannot be read everything may be in use.
func (a *Agent) pruneImages(ctx context.Context) {
	if a.local == nil {
		return // the node's kubelet has the images of Pods
	}
	inUse := map[string]bool{}
	domains, known := a.view.all()
	if !known {
		return
	}
	for _, now := range domains {
		if now.record == nil && now.problem != "" {
			return // nobody can tell what a damaged domain needs
		}
		for _, record := range []*domainxml.Record{now.record, now.running} {
			if record == nil {
				continue
			}
			for _, volume := range record.Volumes {
				for _, path := range []string{volume.Backing, volume.Path, volume.Initrd} {
					inUse[digestOf(path)] = true
				}
			}
		}
	}
	removed, err := a.local.images.Prune(ctx, inUse)
	if err != nil && ctx.Err() == nil {
		a.config.Logger.Warn("cannot prune container disks", "error", err)
	}
	for _, image := range removed {
		a.config.Logger.Info("removed a container disk that nothing uses", "digest", image.Digest, "refs", image.Refs)
	}
}

// digestOf returns the digest of the image that a file of the image cache belongs to: the name of its folder.
func digestOf(path string) string {
	return strings.Replace(filepath.Base(filepath.Dir(path)), "-", ":", 1)
}
