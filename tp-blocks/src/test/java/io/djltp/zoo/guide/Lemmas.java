package io.djltp.zoo.guide;

import ai.djl.inference.Predictor;
import ai.djl.modality.Classifications;
import ai.djl.repository.zoo.Criteria;
import ai.djl.repository.zoo.ModelZoo;
import ai.djl.repository.zoo.ZooModel;

import java.util.List;

public class Lemmas {

    public static void main(String[] args) throws Exception {
        Criteria<String, Classifications> criteria =
                Criteria.builder()
                        .setTypes(String.class, Classifications.class)
                        .optGroupId("io.djltp")
                        .optArtifactId("lemma-en")
                        .optArgument("tensor_parallel_degree", 2) // or "max"; without it 1
                        .build();
        try (ZooModel<String, Classifications> model = criteria.loadModel();
                Predictor<String, Classifications> predictor = model.newPredictor()) {
            for (Classifications lemmas : predictor.batchPredict(List.of("went", "mice"))) {
                System.out.println(lemmas.best());
            }
        }
        System.out.println(ModelZoo.listModels(criteria));
    }
}
