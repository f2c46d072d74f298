package io.djltp.examples.lemma;

import org.testng.Assert;
import org.testng.annotations.AfterMethod;
import org.testng.annotations.BeforeMethod;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;

/** What fastText gets is what this library trains on and is judged by, and nothing else. */
public class FastTextFilesTest {

    private Path folder;

    @BeforeMethod
    public void makeFolder() throws IOException {
        folder = Files.createTempDirectory("fasttext");
    }

    @AfterMethod
    public void deleteFolder() throws IOException {
        for (String file : List.of("train.txt", "test.txt", "labels.txt")) {
            Files.deleteIfExists(folder.resolve("split").resolve(file));
        }
        Files.delete(folder.resolve("split"));
        Files.delete(folder);
    }

    private List<String> write(HeldOutSplit split, String file) throws IOException {
        new FastTextFiles(split).write(folder.resolve("split"));
        return Files.readAllLines(folder.resolve("split").resolve(file));
    }

    @Test(timeOut = 60_000)
    public void everyTrainingPairIsALineInAnotherOrder() throws IOException {
        HeldOutSplit split = HeldOutSplit.of(TestCorpus.verbs(500, 4), 300, 1);
        List<String> expected = new ArrayList<>();
        for (int pair : split.trainingPairs()) {
            LemmaCorpus corpus = split.corpus();
            expected.add("__label__" + corpus.classOf(pair) + " " + corpus.form(pair));
        }
        List<String> lines = write(split, "train.txt");
        Assert.assertNotEquals(lines, expected, "in the order of the dictionary");
        Assert.assertEquals(lines.size(), expected.size());
        Assert.assertEquals(new HashSet<>(lines), new HashSet<>(expected));
        Set<String> learned = new HashSet<>();
        lines.forEach(line -> learned.add(line.substring(line.indexOf(' ') + 1)));
        for (String line : write(split, "test.txt")) {
            Assert.assertFalse(learned.contains(line.substring(line.indexOf(' ') + 1)), line);
        }
    }

    @Test
    public void aHeldOutFormHasAllOfItsLemmas() throws IOException {
        HeldOutSplit split = HeldOutSplit.of(TestCorpus.ambiguous(), 5, 1);
        Assert.assertEquals(write(split, "test.txt"), List.of("__label__0 __label__1 Weisen"));
        Assert.assertEquals(
                write(split, "labels.txt"), List.of("__label__0 Weise", "__label__1 weisen"));
    }
}
