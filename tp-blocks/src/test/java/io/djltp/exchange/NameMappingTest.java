package io.djltp.exchange;

import io.djltp.exchange.NameMapping.NamePattern;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.List;
import java.util.Map;

/** The lines of a mapping. */
public class NameMappingTest {

    @Test
    public void placesAreFilled() {
        NamePattern layer = new NamePattern("{path}.layer{n}.mlp.*.weight");
        Map<String, String> places = layer.match("body.stack.layer12.mlp.down.weight");
        Assert.assertEquals(places, Map.of("path", "body.stack", "n", "12", "letters", "down"));
        Assert.assertEquals(layer.fill(places, ""), "body.stack.layer12.mlp.down.weight");
        Assert.assertEquals(
                new NamePattern("h.{n}.*_proj.weight").fill(places, "0"), "h.12.down_proj.weight");
        Assert.assertNull(layer.match("body.layer.x.mlp.down.weight"));
    }

    @Test
    public void aLayerAloneIsNumberZero() {
        NamePattern layer = new NamePattern("{path}.layer{n}.weight");
        Map<String, String> places = layer.match("layer.weight");
        Assert.assertEquals(layer.fill(places, ""), "layer.weight");
        Assert.assertEquals(new NamePattern("l.{n}.w").fill(places, "0"), "l.0.w");
        Assert.assertEquals(new NamePattern("{path}.w").fill(places, "0"), "w");
    }

    @DataProvider
    public static Object[][] badLines() {
        return new Object[][] {
            {"a b", "it is not of the form parameter = tensor"},
            {"a = b : turned", "there are the flags transposed and padded, and no [turned]"},
            {"a = b * 0 + c", "0 is no share: a number above 0"},
            {"a = b + c : padded", "what is padded or transposed is one parameter and one tensor"},
            {"layer{n}.a + b = c", "its parameters have different places"},
            {"a + = b", "'a +' is no name"},
            {"a = b + + c", "'+ c' is no name"},
            {"+ = b", "'+' is no name"},
            {"x{path}y = q", "behind a place of blocks is a dot, or nothing"},
            {"ignore a = b", "'a = b' is no name"},
            {"a = layer.{n}", "layer.{n} has places that the parameters do not have"},
        };
    }

    @Test(dataProvider = "badLines")
    public void badLinesAreNamed(String line, String reason) {
        IllegalArgumentException e =
                Assert.expectThrows(
                        IllegalArgumentException.class, () -> NameMapping.parse("# x\n" + line));
        Assert.assertEquals(
                e.getMessage(), "The mapping of names has the line '" + line + "': " + reason);
    }

    @Test
    public void aPlaceIsThereOnce() {
        for (String line :
                new String[] {
                    "{n}.{n} = a", "{path}.{path} = a", "*x* = a", "a{ = b", "{a b} = c"
                }) {
            String message =
                    Assert.expectThrows(
                                    IllegalArgumentException.class, () -> NameMapping.parse(line))
                            .getMessage();
            Assert.assertTrue(message.startsWith("The name "), message);
        }
        NamePattern expert = new NamePattern("layers.{n}.experts.{e}.w");
        Assert.assertEquals(
                expert.fill(expert.match("layers.3.experts.11.w"), "0"), "layers.3.experts.11.w");
    }

    @Test
    public void rulesThatNameNothingAreFound() {
        NameMapping mapping =
                NameMapping.parse(
                        "{path}.layer{n}.up.weight = up.{n} * 2 + gate.{n}\n"
                                + "{path}.layer{n}.donw.weight = down.{n} : transposed\n"
                                + "a + b = c\n"
                                + "ignore d");
        Assert.assertEquals(
                mapping.findUnused(List.of("layer0.up.weight", "layer0.down.weight", "a")),
                List.of("{path}.layer{n}.donw.weight = down.{n} : transposed", "a + b = c"));
        Assert.assertEquals(
                mapping.findUnused(List.of("b", "a", "x.layer.donw.weight")),
                List.of("{path}.layer{n}.up.weight = up.{n} * 2 + gate.{n}"));
    }

    @Test
    public void prefixesAreOfTensors() {
        NameMapping bert = NameMapping.bert().withPrefix("bert.");
        Assert.assertTrue(bert.isIgnored("bert.embeddings.position_ids"));
        Assert.assertEquals(
                bert.rules().get(0).tensors().get(0).name().toString(),
                "bert.encoder.layer.{n}.attention.self.query.weight");
    }

    /** A place is called by any word, also by one that is no name of a group of Java. */
    @Test
    public void wordsOfPlacesAreFree() {
        NamePattern named = new NamePattern("{block_path}.layer{n}.{2nd}.weight");
        Map<String, String> places = named.match("body.stack.layer12.mlp.down.weight");
        Assert.assertEquals(
                places, Map.of("block_path", "body.stack", "n", "12", "2nd", "mlp.down"));
        Assert.assertEquals(named.fill(places, ""), "body.stack.layer12.mlp.down.weight");
    }
}
