package deploy

import (
	"bytes"
	"encoding/json"
	"fmt"

	autoscaling "k8s.io/api/autoscaling/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// ScaledObject is of KEDA (keda.sh/v1alpha1): the fields that deploy/k8s uses, and no
// other, so that a new one is looked up before it is added here.
type ScaledObject struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		ScaleTargetRef  autoscaling.CrossVersionObjectReference `json:"scaleTargetRef"`
		MinReplicaCount *int32                                  `json:"minReplicaCount"`
		MaxReplicaCount *int32                                  `json:"maxReplicaCount"`
		PollingInterval *int32                                  `json:"pollingInterval"`
		Fallback        *struct {
			FailureThreshold int32  `json:"failureThreshold"`
			Replicas         int32  `json:"replicas"`
			Behavior         string `json:"behavior"`
		} `json:"fallback"`
		Advanced struct {
			HorizontalPodAutoscalerConfig struct {
				Behavior *autoscaling.HorizontalPodAutoscalerBehavior `json:"behavior"`
			} `json:"horizontalPodAutoscalerConfig"`
		} `json:"advanced"`
		Triggers []struct {
			Type       string `json:"type"`
			MetricType string `json:"metricType"`
			// Metadata is the scaler's: strings only.
			Metadata map[string]string `json:"metadata"`
		} `json:"triggers"`
	} `json:"spec"`
}

// PodMonitor is of the Prometheus operator (monitoring.coreos.com/v1), in the same
// way.
type PodMonitor struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Selector            metav1.LabelSelector `json:"selector"`
		PodTargetLabels     []string             `json:"podTargetLabels"`
		PodMetricsEndpoints []struct {
			Port          string `json:"port"`
			Path          string `json:"path"`
			Interval      string `json:"interval"`
			ScrapeTimeout string `json:"scrapeTimeout"`
		} `json:"podMetricsEndpoints"`
	} `json:"spec"`
}

// strictly decodes a custom object as the API server would by its schema: an unknown
// field is an error, and so is a number where text has to be.
func strictly[T any](document []byte) (*T, error) {
	text, err := yaml.YAMLToJSONStrict(document)
	if err != nil {
		return nil, fmt.Errorf("decode: %w", err)
	}
	object := new(T)
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(object); err != nil {
		return nil, fmt.Errorf("decode %T: %w", *object, err)
	}
	return object, nil
}
