// The program that holds a pod's namespaces open.
module dengine.io/e2e/programs/pause

go 1.24.0
