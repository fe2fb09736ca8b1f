// Record runs a command on a terminal and writes down what it prints, and when, as an asciicast (version 2), from which
// docs/pictures makes an animation:
//
//	go run ./docs/pictures/record -o docs/pictures/quickstart.cast go run ./examples/quickstart
//
// The terminal is that of "script", which is part of util-linux.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
	"unicode/utf8"
)

func main() {
	out := flag.String("o", "", "file to write, *.cast")
	columns := flag.Int("columns", 76, "width of the terminal")
	rows := flag.Int("rows", 32, "height of the terminal")
	flag.Parse()
	if *out == "" || flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "usage: record -o FILE.cast [-columns N] [-rows N] COMMAND…")
		os.Exit(2)
	}
	if err := record(*out, *columns, *rows, strings.Join(flag.Args(), " ")); err != nil {
		fmt.Fprintln(os.Stderr, "record:", err)
		os.Exit(1)
	}
}

// record runs the shell command, shows what it prints, and writes it into the file. A command that fails is recorded too.
func record(path string, columns, rows int, command string) (err error) {
	cmd := exec.CommandContext(context.Background(), "script", "--quiet", "--return", "--flush", "--command", fmt.Sprintf("stty cols %d rows %d; %s", columns, rows, command), os.DevNull)
	cmd.Env = append(os.Environ(), "TERM=xterm-256color", "SHELL=/bin/sh")
	cmd.Stderr = os.Stderr
	printed, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	w := bufio.NewWriter(file)
	defer func() { err = errors.Join(err, w.Flush()) }()
	if err := write(w, map[string]any{"version": 2, "width": columns, "height": rows, "command": command}); err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("%w: util-linux has script", err)
	}
	if err := transcribe(w, io.TeeReader(printed, os.Stdout)); err != nil {
		return err
	}
	return cmd.Wait()
}

// transcribe writes an event for each piece that is printed: when, in seconds from the beginning, and what.
func transcribe(w io.Writer, printed io.Reader) error {
	began := time.Now()
	buffer := make([]byte, 64<<10)
	kept := 0 // bytes of a rune that is not complete yet
	for {
		n, err := printed.Read(buffer[kept:])
		n += kept
		whole := n
		for whole > 0 && n-whole < utf8.UTFMax && !utf8.Valid(buffer[:whole]) {
			whole--
		}
		if err != nil {
			whole = n
		}
		if whole > 0 {
			at := float64(time.Since(began).Milliseconds()) / 1000
			if err := write(w, []any{at, "o", string(buffer[:whole])}); err != nil {
				return err
			}
		}
		kept = copy(buffer, buffer[whole:n])
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

func write(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}
