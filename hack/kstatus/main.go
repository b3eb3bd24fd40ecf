// Command kstatus reads JSON objects, one a line, and prints for each how Flux (and every other user of kstatus) judges it.
package main

import (
	"bufio"
	"fmt"
	"log"
	"os"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		object := &unstructured.Unstructured{}
		if err := object.UnmarshalJSON(lines.Bytes()); err != nil {
			log.Fatal(err)
		}
		result, err := status.Compute(object)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(result.Status)
	}
	if err := lines.Err(); err != nil {
		log.Fatal(err)
	}
}
