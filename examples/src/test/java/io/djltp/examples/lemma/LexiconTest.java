package io.djltp.examples.lemma;

import ai.djl.util.Utils;

import org.testng.Assert;
import org.testng.annotations.AfterMethod;
import org.testng.annotations.BeforeMethod;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.stream.Stream;

public class LexiconTest {

    private Path folder;

    @BeforeMethod
    public void makeFolder() throws IOException {
        folder = Files.createTempDirectory("lexicon");
    }

    @AfterMethod
    public void removeFolder() {
        Utils.deleteQuietly(folder);
    }

    @Test
    public void savedLexiconComesBack() throws IOException {
        Lexicon lexicon =
                LemmaCorpus.builder()
                        .add(Language.DE, "Äpfel", "Apfel")
                        .add(Language.DE, "ging", "gehen")
                        .add(Language.UK, "їжі", "їжа")
                        .build()
                        .lexicon();
        Path file = folder.resolve("model/lexicon.tsv");
        lexicon.save(file);
        lexicon.save(file);
        Assert.assertEquals(Files.readAllLines(file), List.of("de\tApfel", "de\tgehen", "uk\tїжа"));
        try (Stream<Path> files = Files.list(file.getParent())) {
            Assert.assertEquals(files.count(), 1, "nothing but the lexicon is left behind");
        }
        Lexicon loaded = Lexicon.load(file);
        Assert.assertEquals(loaded.size(), 3);
        Assert.assertEquals(loaded.languages(), lexicon.languages());
        for (int i = 0; i < 3; i++) {
            Assert.assertEquals(loaded.label(i), lexicon.label(i));
            Assert.assertEquals(loaded.language(i), lexicon.language(i));
        }
    }

    @DataProvider
    public Object[][] badLines() {
        return new Object[][] {
            {List.of("de\tgehen", "de gehen"), "line 2: expected a language"},
            {List.of("xx\tgehen"), "line 1: unknown language 'xx'"},
            {List.of("de\tgehen", "de\tgehen"), "line 2: this lemma was there before"},
            {List.of("de\ta", "en\tb", "de\tc"), "line 3: the classes of German must be neighbours"}
        };
    }

    @Test(dataProvider = "badLines")
    public void badLineIsNamed(List<String> lines, String message) throws IOException {
        Path file = Files.write(folder.resolve("lexicon.tsv"), lines);
        IOException e = Assert.expectThrows(IOException.class, () -> Lexicon.load(file));
        Assert.assertTrue(e.getMessage().contains(message), e.getMessage());
    }
}
