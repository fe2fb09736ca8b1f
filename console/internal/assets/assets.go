// Package assets has the templates of the pages, the style sheet, the script and the icon.
package assets

import (
	"bytes"
	"embed"
	"html/template"
	"io/fs"
	"net/http"
	"path"
	"time"

	"github.com/millrace-go/millrace/console/internal/format"
)

//go:embed templates/*.html
var templateFiles embed.FS

//go:embed static
var staticFS embed.FS

// Folder is the path of style sheet, script and icon, below the prefix of all pages.
const Folder = "static"

// Pages are the templates of the pages, each combined with the layout.
var Pages = parsePages()

func parsePages() map[string]*template.Template {
	all := map[string]*template.Template{}
	names, err := fs.Glob(templateFiles, "templates/page_*.html")
	if err != nil {
		panic(err) // the pattern is wrong
	}
	for _, file := range names {
		all[path.Base(file)] = template.Must(template.New("layout.html").Funcs(format.Functions).ParseFS(templateFiles, "templates/layout.html", "templates/parts.html", file))
	}
	return all
}

// Static serves the style sheet, the script and the icon.
func Static(file string) http.HandlerFunc {
	b, err := staticFS.ReadFile(Folder + "/" + file)
	if err != nil {
		panic(err) // it is not embedded
	}
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "private, max-age=300")
		http.ServeContent(w, r, file, time.Time{}, bytes.NewReader(b))
	}
}
