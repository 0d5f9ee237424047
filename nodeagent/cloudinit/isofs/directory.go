package isofs

// record is a directory record (ECMA-119, 9.1) with its system use area.
func record(name []byte, start, size int, isDirectory bool, systemUse []byte) []byte {
	const fixed = 33
	length := fixed + len(name)
	if len(name)%2 == 0 {
		length++ // the system use area starts at an even offset
	}
	r := make([]byte, length, 255)
	putBoth32(r[2:], uint32(start)) //nolint:gosec // bounded by MaxSize
	putBoth32(r[10:], uint32(size)) //nolint:gosec // bounded by MaxSize
	copy(r[18:], shortTime())
	if isDirectory {
		r[25] = 2
	}
	putBoth16(r[28:], 1)
	r[32] = byte(len(name)) //nolint:gosec // bounded by maxNameLength
	copy(r[fixed:], name)
	r = append(r, systemUse...)
	if len(r)%2 == 1 {
		r = append(r, 0)
	}
	r[0] = byte(len(r)) //nolint:gosec // bounded by maxNameLength
	return r
}

// The POSIX modes that Rock Ridge shows. The files may hold secrets: only the guest's root reads them.
const (
	directoryMode = 0o040555
	fileMode      = 0o100400
)

func directoryAttributes() []byte { return append(posixAttributes(directoryMode, 2), timestamps()...) }

func fileAttributes() []byte { return append(posixAttributes(fileMode, 1), timestamps()...) }

// alternateName is the NM entry with a name as it was given.
func alternateName(name string) []byte {
	return append([]byte{'N', 'M', byte(5 + len(name)), 1, 0}, name...) //nolint:gosec // bounded by maxNameLength
}

// posixAttributes is the PX entry in its 1991 form of 36 bytes, which every reader takes.
func posixAttributes(mode, links uint32) []byte {
	entry := append([]byte{'P', 'X', 36, 1}, make([]byte, 32)...)
	putBoth32(entry[4:], mode)
	putBoth32(entry[12:], links)
	return entry // uid and gid stay 0
}

// timestamps is the TF entry: modification, access, attribute change.
func timestamps() []byte {
	entry := []byte{'T', 'F', 26, 1, 0b1110}
	for range 3 {
		entry = append(entry, shortTime()...)
	}
	return entry
}

// sharingProtocol is the SP entry that opens the root's own record (IEEE P1281, 5.3).
func sharingProtocol() []byte { return []byte{'S', 'P', 7, 1, 0xbe, 0xef, 0} }

// continuationArea is the CE entry that says where extensionReference lies.
func continuationArea(sector int) []byte {
	entry := append([]byte{'C', 'E', 28, 1}, make([]byte, 24)...)
	putBoth32(entry[4:], uint32(sector))                     //nolint:gosec // bounded by MaxSize
	putBoth32(entry[20:], uint32(len(extensionReference()))) //nolint:gosec // a small constant
	return entry
}

// extensionReference is the ER entry that names Rock Ridge (IEEE P1282, 4.3).
func extensionReference() []byte {
	const id = "RRIP_1991A"
	const description = "THE ROCK RIDGE INTERCHANGE PROTOCOL PROVIDES SUPPORT FOR POSIX FILE SYSTEM SEMANTICS"
	entry := []byte{'E', 'R', byte(8 + len(id) + len(description)), 1, byte(len(id)), byte(len(description)), 0, 1}
	return append(append(entry, id...), description...)
}
