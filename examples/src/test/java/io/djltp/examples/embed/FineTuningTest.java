package io.djltp.examples.embed;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertTrue;

import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.dataset.Batch;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;

import io.djltp.classes.ClassData;
import io.djltp.classes.ClassModel;
import io.djltp.examples.lemma.Language;
import io.djltp.llm.EncoderBody;
import io.djltp.llm.zoo.MiniLmFolder;
import io.djltp.rank.ParallelConfig;
import io.djltp.testing.TestFolder;
import io.djltp.testing.TrainingRun;
import io.djltp.training.ParallelTrainer;

import morfologik.stemming.Dictionary;
import morfologik.stemming.DictionaryLookup;
import morfologik.stemming.WordData;

import org.testng.annotations.BeforeClass;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Random;

/**
 * The layers of the pretrained model learn which of five languages a word is of, from the
 * dictionaries of the lemmatiser, with a head that is cut over the ranks.
 */
public class FineTuningTest {

    private static final int STEPS = 30;
    private static final int BATCH = 5;
    private static final int WORDS_OF_A_LANGUAGE = STEPS * BATCH / Language.values().length / 2;
    private static final int DISTANCE = 997; // in the dictionary
    private static final int LAST_STEPS = 6;

    private final Path words = TestFolder.create().resolve("words.tsv");

    @BeforeClass
    public void writeWords() throws IOException {
        List<String> lines = new ArrayList<>();
        for (Language language : Language.values()) {
            int number = 0;
            var url = Language.class.getResource("/" + language.resource());
            for (WordData entry : new DictionaryLookup(Dictionary.read(url))) {
                if (++number % DISTANCE == 0) {
                    lines.add(language + "\t" + entry.getWord());
                }
                if (number == DISTANCE * WORDS_OF_A_LANGUAGE) {
                    break;
                }
            }
        }
        Collections.shuffle(lines, new Random(1));
        lines.addAll(new ArrayList<>(lines)); // two epochs
        Files.write(words, lines);
    }

    @Test(timeOut = 240_000)
    public void twoRanksLearnWhatOneLearns() throws Exception {
        List<Float> one = train(1);
        List<Float> two = train(2);
        for (int i = 0; i < STEPS; i++) {
            assertEquals(two.get(i), one.get(i), 1e-4 * one.get(i), "loss of step " + i);
        }
        assertEquals(one.get(0), Math.log(Language.values().length), 0.3);
        double last = 0;
        for (float loss : two.subList(STEPS - LAST_STEPS, STEPS)) {
            last += loss / LAST_STEPS;
        }
        assertTrue(last < 0.75 * two.get(0), "the loss has fallen from " + two + " to " + last);
    }

    private List<Float> train(int ranks) throws Exception {
        EncoderBody body = EncoderBody.of(MiniLmFolder.get(), false);
        ClassData data = ClassData.builder(words).optTextFeatures(body).build();
        try (ClassModel model = ClassModel.builder(data).optBody(body).build()) {
            model.getModel().getNDManager().getEngine().setRandomSeed(5);
            Tracker rate = Tracker.fixed(2e-4f);
            DefaultTrainingConfig config =
                    new DefaultTrainingConfig(model.newLoss())
                            .optOptimizer(Optimizer.adam().optLearningRateTracker(rate).build());
            ParallelConfig parallel = ParallelConfig.tensor(ranks);
            List<Float> losses = new ArrayList<>();
            try (ParallelTrainer trainer =
                    new ParallelTrainer(model.getModel(), config, parallel)) {
                trainer.initialize(model.getInputShapes(BATCH));
                for (Batch batch : trainer.iterateDataset(data.newDataset(BATCH, false, 1))) {
                    losses.add(TrainingRun.step(trainer, batch.getData(), batch.getLabels()));
                    batch.close();
                }
            }
            return losses;
        }
    }
}
