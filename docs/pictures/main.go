// Pictures makes the pictures of the documentation from their sources beside it: a drawing of each .pic file, and an
// animation of each .cast file, which is a terminal as docs/pictures/record recorded it. Each is made for a light and for a
// dark page.
//
//	go run ./docs/pictures
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

func main() {
	if err := run("docs/pictures"); err != nil {
		fmt.Fprintln(os.Stderr, "pictures:", err)
		os.Exit(1)
	}
}

func run(folder string) error {
	pictures, err := render(folder)
	if err != nil {
		return err
	}
	for name, svg := range pictures {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(svg), 0o644); err != nil { //nolint:gosec // everybody may look at it
			return err
		}
	}
	return nil
}

// render makes each picture of the folder's sources, by the name of its file.
func render(folder string) (pictures map[string]string, err error) {
	pictures = map[string]string{}
	for suffix, develop := range map[string]func(source string, t theme) (string, error){".pic": draw, ".cast": film} {
		sources, err := filepath.Glob(filepath.Join(folder, "*"+suffix))
		if err != nil {
			return nil, err
		}
		for _, path := range sources {
			source, err := os.ReadFile(path)
			if err != nil {
				return nil, err
			}
			for _, t := range themes {
				svg, err := develop(string(source), t)
				if err != nil {
					return nil, fmt.Errorf("%s: %w", path, err)
				}
				pictures[strings.TrimSuffix(filepath.Base(path), suffix)+"-"+t.name+".svg"] = svg
			}
		}
	}
	if len(pictures) == 0 {
		return nil, fmt.Errorf("%s has no sources of pictures: run it from the folder of the repository", folder)
	}
	return pictures, nil
}
