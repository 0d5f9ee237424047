// Package git reads manifests from a git repository (Source) and writes the status branch (Publisher).
//
// A Source keeps a bare mirror of one branch, without a work tree. Poll asks the remote for its references, and only
// when the branch moved does it fetch, over the same connection, what the mirror lacks; it then reads the trees
// straight from the object store, and only those whose hash it has not seen. A mirror that is damaged (a killed
// process, a full disk) is replaced by a fresh one; it never yields half a snapshot.
//
// It speaks https, http, ssh, git, file and plain local paths. Local repositories are served by the git-upload-pack
// and git-receive-pack of an installed git; nothing else runs a program.
//
// Credentials are read from files or environment variables each time they are used, so they can be rotated; they
// appear in no error. This package does not log, does not poll by itself (see sources/backoff for that), and knows no
// forge.
package git
