package guestfiles

import (
	"golang.org/x/sys/unix"

	"github.com/gitvirt/gitvirt/nodeagent/cloudinit/isofs"
)

func file(name, content string) isofs.File { return isofs.File{Name: name, Data: []byte(content)} }

func mkfifo(path string) error { return unix.Mkfifo(path, 0o644) }
