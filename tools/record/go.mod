module github.com/tandem-serving/tandem/tools/record

go 1.26.0
