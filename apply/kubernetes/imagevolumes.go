package kubernetes

import (
	"fmt"
	"strconv"
	"strings"

	"k8s.io/client-go/discovery"
)

// firstImageVolumes is the minor version of the first Kubernetes 1.x in which image volumes are on unless somebody switches them off.
const firstImageVolumes = 35

// HasImageVolumes reports whether a cluster of this version has image volumes unless somebody switched them off.
func HasImageVolumes(client discovery.ServerVersionInterface) (bool, error) {
	found, err := client.ServerVersion()
	if err != nil {
		return false, fmt.Errorf("asking for the version of Kubernetes: %w", err)
	}
	minor, err := strconv.Atoi(strings.TrimRight(found.Minor, "+")) // some providers have versions like 1.35+
	return err != nil || found.Major != "1" || minor >= firstImageVolumes, nil
}
