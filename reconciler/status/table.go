package status

import (
	"fmt"
	"strings"
	"time"

	"github.com/gitvirt/gitvirt/schemas"
)

// The table is for people: forges do not render a file of more than half a megabyte, and nobody reads ten thousand
// rows.
const (
	maxRows   = 1000
	maxErrors = 100
	maxCell   = 300
	// maxRefusal is longer: it names a commit, a person and a key, and says what to do.
	maxRefusal = 1000
)

// table is README.md.
func (f *Fleet) table() []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\n", markdown(f.Name))
	synced := 0
	for i := range f.VMs {
		if f.VMs[i].Synced() == True {
			synced++
		}
	}
	fmt.Fprintf(&b, "Revision `%s`. ", code(ShortRevision(f.Revision)))
	if len(f.VMs) == 0 {
		b.WriteString("No VM.\n")
	} else {
		fmt.Fprintf(&b, "%d VM%s: %s. In sync: %d of %d.\n", len(f.VMs), s(len(f.VMs)), f.counts(), synced, len(f.VMs))
	}
	if f.Refused != "" {
		fmt.Fprintf(&b, "\n**A revision is not applied:** %s.\n", escapes.Replace(cut(OneLine(f.Refused), maxRefusal)))
	}
	if f.Unknown != "" {
		fmt.Fprintf(&b, "\n**The host cannot be read:** %s. Nothing is changed meanwhile; the table shows what was known last.\n", markdown(f.Unknown))
	}
	if f.PlanID != "" {
		fmt.Fprintf(&b, "\n**Steps wait for approval** in plan `%.12s` ([%s](%s)): `gitvirt approve %.12s`.\n", code(f.PlanID), PlanPath, PlanPath, code(f.PlanID))
	}
	for _, problem := range f.Unmet {
		fmt.Fprintf(&b, "\n**The controller:** %s.\n", markdown(problem))
	}
	b.WriteString("\nThis branch is written by gitvirt; edit the manifests instead. Each VM has a file below `vms/`.\n")
	f.parts(&b)
	if len(f.VMs) > 0 {
		f.rows(&b)
	}
	f.broken(&b)
	f.kept(&b)
	return []byte(b.String())
}

// parts writes the table of repositories.
func (f *Fleet) parts(b *strings.Builder) {
	if len(f.Parts) == 0 {
		return
	}
	b.WriteString("\n| Source | Revision | Time | Problem |\n| --- | --- | --- | --- |\n")
	for i := range f.Parts {
		part := &f.Parts[i]
		name, at := part.Name, ""
		if name == "" {
			name = "this repository"
		}
		if !part.Time.IsZero() {
			at = part.Time.UTC().Format(time.DateTime)
		}
		fmt.Fprintf(b, "| %s | %s | %s | %s |\n", markdown(name), markdown(ShortRevision(part.Revision)), at, markdown(part.Problem))
	}
}

func s(n int) string {
	if n == 1 {
		return ""
	}
	return "s"
}

// rows writes the table of machines. Of too many, those that are in sync go first.
func (f *Fleet) rows(b *strings.Builder) {
	b.WriteString("\n| VM | Phase | Node | Addresses | Revision | Synced | Message |\n| --- | --- | --- | --- | --- | --- | --- |\n")
	room := maxRows
	for i := range f.VMs {
		if f.VMs[i].Synced() != True {
			room--
		}
	}
	hidden, written := 0, 0
	for i := range f.VMs {
		vm := &f.VMs[i]
		if len(f.VMs) > maxRows && vm.Synced() == True {
			if room <= 0 {
				hidden++
				continue
			}
			room--
		}
		if written == maxRows {
			hidden++
			continue
		}
		written++
		name := markdown(vm.Address.Namespace + "/" + vm.Address.Name)
		if path, ok := Path(vm.Address); ok {
			name = "[" + name + "](" + path + ")"
		}
		fmt.Fprintf(b, "| %s | %s | %s | %s | %s | %s | %s |\n", name, vm.Phase, markdown(vm.Node),
			markdown(strings.Join(vm.Addresses, ", ")), markdown(ShortRevision(vm.ObservedRevision)), syncedCell(vm), markdown(vm.Message))
	}
	if hidden > 0 {
		fmt.Fprintf(b, "\nand %d more, see `vms/`.\n", hidden)
	}
}

// syncedCell says in a word whether the machine is as git wants it.
func syncedCell(vm *VM) string {
	c := vm.Condition(ConditionSynced)
	if c.Status == True {
		return "yes"
	}
	return markdown(c.Reason)
}

func (f *Fleet) broken(b *strings.Builder) {
	var errors []schemas.Diagnostic
	for _, diagnostic := range f.Broken {
		if diagnostic.Severity != schemas.SeverityWarning {
			errors = append(errors, diagnostic)
		}
	}
	if len(errors) == 0 {
		return
	}
	fmt.Fprintf(b, "\n## Mistakes in the manifests: %d\n\n", len(errors))
	for i, diagnostic := range errors {
		if i == maxErrors {
			fmt.Fprintf(b, "- and %d more\n", len(errors)-i)
			break
		}
		position := diagnostic.Position.String()
		rest := strings.TrimPrefix(diagnostic.Error(), position+": ")
		fmt.Fprintf(b, "- %s: %s\n", markdown(position), markdown(rest))
	}
}

func (f *Fleet) kept(b *strings.Builder) {
	if len(f.KeptDisks) == 0 {
		return
	}
	b.WriteString("\n## Disks that outlived their VM\n\n`gitvirt disks prune` deletes the ones it is told.\n\n")
	b.WriteString("| VM | Disk | Node | Path | Size |\n| --- | --- | --- | --- | --- |\n")
	for i, disk := range f.KeptDisks {
		if i == maxRows {
			fmt.Fprintf(b, "\nand %d more.\n", len(f.KeptDisks)-i)
			break
		}
		owner := ""
		if !disk.Owner.IsZero() {
			owner = disk.Owner.Namespace + "/" + disk.Owner.Name
		}
		fmt.Fprintf(b, "| %s | %s | %s | %s | %s |\n", markdown(owner), markdown(disk.Volume), markdown(disk.Node), markdown(disk.Path), size(disk.CapacityBytes))
	}
}

// size is a number of bytes for people.
func size(bytes int64) string {
	switch {
	case bytes <= 0:
		return ""
	case bytes < 1<<30:
		return fmt.Sprintf("%d MiB", bytes>>20)
	}
	return fmt.Sprintf("%.1f GiB", float64(bytes)/(1<<30))
}

// escapes makes every character mean itself in GitHub's Markdown: in a table cell, in running text, in HTML.
var escapes = strings.NewReplacer(
	"&", "&amp;", "<", "&lt;", ">", "&gt;", "|", `\|`, "`", "\\`", `\`, `\\`, "*", `\*`, "_", `\_`, "[", `\[`, "]", `\]`,
	"#", `\#`, "!", `\!`, "~", `\~`, "$", "&#36;", "@", "&#64;", "://", "&#58;//",
)

// markdown makes a text safe in a line of Markdown.
func markdown(text string) string { return escapes.Replace(cut(OneLine(text), maxCell)) }

// code makes a text safe between backticks.
func code(text string) string { return strings.ReplaceAll(OneLine(text), "`", "'") }

// OneLine takes line breaks and invisible characters out of a text.
func OneLine(text string) string {
	clean := strings.Map(func(r rune) rune {
		switch {
		case r == '\n', r == '\r', r == '\t', r == 0x85, r == 0x2028, r == 0x2029:
			return ' '
		case r < 0x20, r >= 0x7f && r < 0xa0, r >= 0x200b && r <= 0x200f, r >= 0x202a && r <= 0x202e, r >= 0x2060 && r <= 0x206f, r == 0xfeff:
			return -1
		}
		return r
	}, strings.ToValidUTF8(text, "�"))
	return strings.Join(strings.Fields(clean), " ")
}
