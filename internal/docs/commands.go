package docs

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Commands is for a program's test. It fails if the documentation names a command or a flag that the program's -h does not list. run runs
// the program in this process, because building each program costs minutes. The test must be in the program's folder.
func Commands(t *testing.T, run func(args []string, out io.Writer)) {
	t.Helper()
	folder, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	root := folder
	for !isRoot(root) {
		if root = filepath.Dir(root); root == filepath.Dir(root) {
			t.Fatalf("%s is in no folder of the module", folder)
		}
	}
	pkg, err := filepath.Rel(root, folder)
	if err != nil {
		t.Fatal(err)
	}
	r, err := read(os.DirFS(root))
	if err != nil {
		t.Fatal(err)
	}
	helps := map[string]string{}
	help := func(args ...string) (string, error) {
		line := strings.Join(args, " ")
		if helps[line] == "" {
			var out bytes.Buffer
			if run(append(slices.Clone(args), "-h"), &out); out.Len() == 0 {
				return "", fmt.Errorf("%s %s -h says nothing", pkg, line)
			}
			helps[line] = out.String()
		}
		return helps[line], nil
	}
	checked := 0
	r.eachCommand(func(at string, c command) {
		if c.pkg != "./"+filepath.ToSlash(pkg) {
			return
		}
		checked++
		if err := c.check(help); err != nil {
			t.Errorf("%s: %v", at, err)
		}
	})
	if checked == 0 {
		t.Errorf("the documentation does not name ./%s", pkg)
	}
}

func isRoot(folder string) bool {
	text, err := os.ReadFile(filepath.Join(folder, "go.mod"))
	return err == nil && strings.HasPrefix(string(text), "module github.com/millrace-go/millrace\n")
}

// eachCommand calls f for each command of this repository in a document, with its position.
func (r *repository) eachCommand(f func(at string, c command)) {
	for name, d := range r.documents {
		for _, line := range d.shell {
			for _, c := range commands(line.text) {
				f(fmt.Sprintf("%s:%d: %s", name, line.line, line.text), c)
			}
		}
	}
}

// command is a program with its arguments, as written in the documentation.
type command struct {
	pkg  string // relative to the repository's root
	args []string
}

var (
	quoted  = regexp.MustCompile(`"[^"]*"|'[^']*'`)
	joints  = regexp.MustCompile(`&&|\|\||[;|]`)
	setting = regexp.MustCompile(`^[A-Z_]+=\S*$`)
	isFlag  = regexp.MustCompile(`^--?([A-Za-z][\w-]*)`)
	isWord  = regexp.MustCompile(`^[a-z][a-z-]*$`)
	// A line of help that describes a flag, in cobra's or package flag's format.
	flagLine = regexp.MustCompile(`(?m)^\s+(?:-(\w), )?--?([A-Za-z][\w-]*)`)
)

// commands returns the commands of a line that run this repository's programs.
func commands(line string) (all []command) {
	line, _, _ = strings.Cut(quoted.ReplaceAllString(line, `""`), " #")
	for _, part := range joints.Split(line, -1) {
		words := strings.Fields(strings.NewReplacer("[", " ", "]", " ").Replace(part))
		for len(words) > 0 && (words[0] == "$" || setting.MatchString(words[0])) {
			words = words[1:]
		}
		switch {
		case len(words) > 1 && words[0] == "millrace":
			all = append(all, command{"./cmd/millrace", words[1:]})
		case len(words) > 2 && words[0] == "go" && words[1] == "run" && strings.HasPrefix(words[2], "./"):
			all = append(all, command{words[2], words[3:]})
		}
	}
	return all
}

// check returns an error if help, the program's answer to -h, does not list one of the command's subcommands or flags.
func (c command) check(help func(args ...string) (string, error)) error {
	var path, flags []string
	text, err := help()
	for _, word := range c.args {
		if err != nil || word == "--" {
			break // the arguments after it belong to another program
		}
		if flag := isFlag.FindStringSubmatch(word); flag != nil {
			flags = append(flags, flag[1])
			continue
		}
		_, subcommands, group := strings.Cut(text, "Available Commands:\n")
		if !group || !isWord.MatchString(word) || len(flags) > 0 { // an argument, a placeholder, or a flag's value
			continue
		}
		subcommands, _, _ = strings.Cut(subcommands, "\n\n")
		if !strings.Contains("\n"+subcommands, "\n  "+word+" ") {
			return fmt.Errorf("there is no command %q", strings.Join(append(path, word), " "))
		}
		path = append(path, word)
		text, err = help(path...)
	}
	if err != nil {
		return err
	}
	known := map[string]bool{"h": true, "help": true}
	for _, line := range flagLine.FindAllStringSubmatch(text, -1) {
		known[line[1]], known[line[2]] = true, true
	}
	for _, flag := range flags {
		if !known[flag] {
			return fmt.Errorf("%s has no flag %q", strings.Join(append([]string{c.pkg}, path...), " "), flag)
		}
	}
	return nil
}
