package schemas

// claimKind is what a machine lays claim to.
type claimKind uint8

const (
	claimMAC      claimKind = iota // an explicit MAC address
	claimUUID                      // an explicit firmware UUID
	claimHostDisk                  // a disk image on the host
)

// said names the kind in a sentence.
func (k claimKind) said() string {
	switch k {
	case claimMAC:
		return "MAC address"
	case claimUUID:
		return "firmware UUID"
	}
	return "disk image"
}

// claim is something that must be unique among machines. Claims are gathered when a file is read, so
// that Assemble need not look into the objects.
type claim struct {
	kind     claimKind
	value    string
	hash     uint64 // of kind and value
	path     string
	position Position
	// shared disk images may have several users.
	shared bool
}

func (c *checker) claim(kind claimKind, value string, path []any, shared bool) {
	c.claims = append(c.claims, claim{
		kind: kind, value: value, hash: claimHash(kind, value), shared: shared,
		path: pathString(c.prefix, elements(path)), position: c.position(locate(c.root, path)),
	})
}

// claimHash is FNV-1a; equal hashes are looked at more closely, so collisions do no harm.
func claimHash(kind claimKind, value string) uint64 {
	hash := (uint64(14695981039346656037) ^ uint64(kind)) * 1099511628211
	for i := range len(value) {
		hash = (hash ^ uint64(value[i])) * 1099511628211
	}
	return hash
}
