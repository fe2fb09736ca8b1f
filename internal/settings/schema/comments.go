package schema

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
)

// comments returns the comments of a package's fields, by "Type.Field". Consecutive fields without a comment have the comment of the
// field above them.
func comments(dir string) (map[string]string, error) {
	files, err := filepath.Glob(dir + "/*.go")
	if err != nil {
		return nil, err
	}
	found := map[string]string{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			t, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			if s, ok := t.Type.(*ast.StructType); ok {
				fields(found, t.Name.Name, s)
			}
			return false
		})
	}
	return found, nil
}

func fields(found map[string]string, name string, s *ast.StructType) {
	last := ""
	for _, f := range s.Fields.List {
		if f.Doc != nil {
			last = strings.Join(strings.Fields(f.Doc.Text()), " ")
		}
		for _, n := range f.Names {
			found[name+"."+n.Name] = last
		}
	}
}
