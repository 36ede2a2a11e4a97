module github.com/tandem-serving/tandem/tools/release

go 1.26.0

require golang.org/x/mod v0.42.0
