// Package schemas turns manifests into virtual machines: it reads YAML and JSON into KubeVirt's own Go types,
// fills in KubeVirt's defaults, and says what is wrong, where, and how to mend it.
//
// [Parse] reads one file by itself; what it returns depends on nothing but the file's path and content, so it can be
// cached by blob hash and shared. [Assemble] puts the files of one revision together and finds what only shows
// between them: it expands instancetypes and preferences, makes the members of replica sets and pools, resolves what
// machines refer to (Secrets, claims, networks, host devices), and tells names that are taken twice and disks that two
// machines would write to.
//
// Reading is strict. A field that KubeVirt does not know is an error with file, line, column, path and a "did you
// mean"; a field that KubeVirt knows and gitvirt does not carry out is another error that says so (the tables are in
// support_table.go and support_kinds.go). All mistakes are reported, not the first. An object with errors is still known by its address, in
// [File.Broken], so that a typing mistake never makes a machine disappear; a file whose names cannot be read at all is
// [File.Opaque].
//
// A Fleet may take in other repositories, its sources ([ParseFrom]), and say what each may ask for. The ways in which a manifest
// reaches out of its namespace are gathered when a file is read (reach.go), and judged by [Assemble], which knows the Fleet
// (check_rights.go); what several repositories ask for stays with the one that has it ([Holding], rivals.go).
//
// The package is pure: values in, values out. It reads no file, no clock and no environment, and writes no log; where
// manifests come from is the business of sources, what becomes of them that of plan and apply.
package schemas
