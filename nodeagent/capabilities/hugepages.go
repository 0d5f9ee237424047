package capabilities

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

// FreeHugepages returns how many huge pages of a size in bytes are free on the host, or on one of its NUMA nodes when
// node is not negative. A size that the host does not have is ErrMissing.
func (h Host) FreeHugepages(size int64, node int) (int64, error) {
	dir := "/sys/kernel/mm/hugepages"
	if node >= 0 {
		dir = fmt.Sprintf("/sys/devices/system/node/node%d/hugepages", node)
	}
	path := filepath.Join(h.root, dir, fmt.Sprintf("hugepages-%dkB", size>>10), "free_hugepages")
	content, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return 0, fmt.Errorf("%w: it has no huge pages of %s; it has %s", ErrMissing, pageName(size), h.pageSizes())
	}
	if err != nil {
		return 0, fmt.Errorf("reading the free huge pages: %w", err)
	}
	free, err := strconv.ParseInt(strings.TrimSpace(string(content)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("reading the free huge pages: %w", err)
	}
	return free, nil
}

// CheckHugepages returns ErrMissing when a guest of this memory, in bytes, finds too few free huge pages. held is the
// memory in such pages that the guest has already and gives back first. nodes are the NUMA nodes that the memory is
// spread over evenly; none means anywhere.
func (h Host) CheckHugepages(pageSize string, memory, held int64, nodes []int) error {
	quantity, err := resource.ParseQuantity(pageSize)
	if err != nil || quantity.Value() < 1<<10 {
		return fmt.Errorf("%w: %q is no size of a huge page", ErrMissing, pageSize)
	}
	size := quantity.Value()
	if len(nodes) == 0 {
		nodes = []int{-1}
	}
	share := int64(len(nodes))
	need := (memory/share + size - 1) / size
	for _, node := range nodes {
		free, err := h.FreeHugepages(size, node)
		if err != nil {
			return err
		}
		where := ""
		if node >= 0 {
			where = fmt.Sprintf(" on NUMA node %d", node)
		}
		if free+held/share/size < need {
			return fmt.Errorf("%w: memory.hugepages needs %d free huge pages of %s%s, and %d are; reserve more (echo N > /sys/kernel/mm/hugepages/hugepages-%dkB/nr_hugepages) or stop a guest that has them",
				ErrMissing, need, pageName(size), where, free, size>>10)
		}
	}
	return nil
}

func (h Host) pageSizes() string {
	found, _ := filepath.Glob(filepath.Join(h.root, "/sys/kernel/mm/hugepages/hugepages-*kB")) // the pattern is right
	var sizes []string
	for _, path := range found {
		kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimPrefix(filepath.Base(path), "hugepages-"), "kB"), 10, 64)
		if err == nil {
			sizes = append(sizes, pageName(kib<<10))
		}
	}
	if len(sizes) == 0 {
		return "none"
	}
	return strings.Join(sizes, ", ")
}

func pageName(size int64) string { return resource.NewQuantity(size, resource.BinarySI).String() }
