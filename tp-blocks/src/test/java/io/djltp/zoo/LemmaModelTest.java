package io.djltp.zoo;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertTrue;
import static org.testng.Assert.expectThrows;

import ai.djl.Device;
import ai.djl.inference.Predictor;
import ai.djl.modality.Classifications;
import ai.djl.repository.zoo.Criteria;
import ai.djl.repository.zoo.ZooModel;
import ai.djl.util.Utils;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/** The lemmatiser of the jar knows the words that it was trained with. */
public class LemmaModelTest {

    @Test(timeOut = 60_000)
    public void nearlyAllWordsOfTheTrainingAreRight() throws Exception {
        Map<String, String> words =
                EnglishWords.read(Path.of("src/test/resources/zoo/words-en.txt"));
        Criteria<String, String> criteria =
                Criteria.builder()
                        .setTypes(String.class, String.class)
                        .optGroupId("io.djltp")
                        .optArtifactId("lemma-en")
                        .optDevice(Device.cpu())
                        .build();
        try (ZooModel<String, String> model = criteria.loadModel()) {
            List<String> lemmas =
                    model.newPredictor().batchPredict(new ArrayList<>(words.keySet()));
            int right = 0;
            int i = 0;
            for (String lemma : words.values()) {
                right += lemma.equals(lemmas.get(i++)) ? 1 : 0;
            }
            assertTrue(right >= 0.999 * words.size(), right + " of " + words.size());
        }
    }

    @Test(timeOut = 60_000)
    public void ofNoWordsThereAreNoLemmas() throws Exception {
        for (int degree = 1; degree <= 2; degree++) {
            Criteria<String, Classifications> criteria =
                    Criteria.builder()
                            .setTypes(String.class, Classifications.class)
                            .optGroupId("io.djltp")
                            .optArtifactId("lemma-en")
                            .optArgument(TensorParallelDegree.NAME, degree)
                            .optDevice(Device.cpu())
                            .build();
            try (ZooModel<String, Classifications> model = criteria.loadModel();
                    Predictor<String, Classifications> predictor = model.newPredictor()) {
                assertTrue(predictor.batchPredict(List.of()).isEmpty());
                String lemma = predictor.batchPredict(List.of("went")).get(0).best().getClassName();
                assertEquals(lemma, "go");
            }
        }
    }

    @DataProvider
    public Object[][] wrongNumbers() {
        return new Object[][] {{"-1"}, {"0"}, {"100000"}};
    }

    @Test(dataProvider = "wrongNumbers", timeOut = 60_000)
    public void aNumberOfLemmasThatIsNoneIsRefused(String number) throws Exception {
        Criteria<String, Classifications> criteria =
                Criteria.builder()
                        .setTypes(String.class, Classifications.class)
                        .optGroupId("io.djltp")
                        .optArtifactId("lemma-en")
                        .optArgument("topk", number)
                        .optDevice(Device.cpu())
                        .build();
        String message =
                expectThrows(IllegalArgumentException.class, criteria::loadModel).getMessage();
        assertTrue(message.startsWith("The argument topk is " + number + ", and has"), message);
        assertTrue(message.contains("from 1 to "), message);
    }

    @Test
    public void theRepositoryHasLessThanAMegabyteOfIt() throws IOException {
        long bytes = 0;
        for (String name : new String[] {"model.safetensors", "lexicon.tsv"}) {
            try (InputStream file = LemmaNetwork.class.getResourceAsStream("lemma-en/" + name)) {
                bytes += file.readAllBytes().length;
            }
        }
        assertTrue(bytes < 1_000_000, "" + bytes);
    }

    @Test
    public void aLexiconThatIsNoneIsNamed() throws Exception {
        Path folder = Files.createTempDirectory("lexicon");
        try {
            expectThrows(FileNotFoundException.class, () -> LemmaNetwork.readLabels(folder));
            Files.writeString(folder.resolve(LemmaNetwork.LABELS), "en\tgo\nwent\n");
            String message =
                    expectThrows(IOException.class, () -> LemmaNetwork.readLabels(folder))
                            .getMessage();
            assertTrue(message.contains("line 2"), message);
        } finally {
            Utils.deleteQuietly(folder);
        }
    }

    @Test
    public void argumentsOfTheFolderAreNeeded() {
        String message =
                expectThrows(
                                IllegalArgumentException.class,
                                () ->
                                        new LemmaNetwork.BlockFactory()
                                                .newNetwork(Path.of("."), Map.of("rows", 0)))
                        .getMessage();
        assertTrue(message.contains("argument rows, 1 or more"), message);
    }
}
