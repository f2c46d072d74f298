package io.djltp.architecture;

import org.testng.Assert;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;
import org.w3c.dom.Document;
import org.xml.sax.SAXException;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.regex.Pattern;

import javax.xml.parsers.DocumentBuilderFactory;
import javax.xml.parsers.ParserConfigurationException;
import javax.xml.xpath.XPathExpressionException;
import javax.xml.xpath.XPathFactory;

/** What is published has the metadata that Maven Central asks for, and one version. */
public class PublishedPomsTest {

    private static final Path ROOT =
            Path.of(System.getProperty("basedir", ".")).toAbsolutePath().normalize().getParent();

    private String version;

    @BeforeClass
    public void readVersion() throws Exception {
        version = value(read("pom.xml"), "/project/version");
    }

    @DataProvider
    public static Object[][] published() {
        return new Object[][] {
            {"pom.xml"},
            {"tp-blocks/bom/pom.xml"},
            {"tp-engine-bridge/pom.xml"},
            {"tp-blocks/pom.xml"},
            {"tp-blocks/spark/pom.xml"},
            {"tp-blocks/llm/pom.xml"},
            {"examples/pom.xml"},
        };
    }

    @Test(dataProvider = "published")
    public void hasTheMetadata(String pom) throws Exception {
        Document document = read(pom);
        for (String own : List.of("artifactId", "name", "description")) {
            Assert.assertNotEquals(value(document, "/project/" + own), "", own + " of " + pom);
        }
        boolean inherits = !value(document, "/project/parent").isEmpty();
        for (String either :
                List.of(
                        ("groupId version url licenses/license/name licenses/license/url"
                                        + " developers/developer/name scm/connection scm/url")
                                .split(" "))) {
            String value = value(document, "/project/" + either);
            if (value.isEmpty() && inherits) {
                value = value(read("pom.xml"), "/project/" + either);
            }
            Assert.assertNotEquals(value, "", either + " of " + pom);
        }
    }

    @Test(dataProvider = "published")
    public void hasTheVersion(String pom) throws Exception {
        Document document = read(pom);
        boolean inherits = !value(document, "/project/parent").isEmpty();
        String found = value(document, "/project/" + (inherits ? "parent/" : "") + "version");
        Assert.assertEquals(found, version, pom);
    }

    @DataProvider
    public static Object[][] modules() {
        return new Object[][] {
            {"tp-engine-bridge/pom.xml", "io.djltp.engine_bridge"},
            {"tp-blocks/pom.xml", "io.djltp.blocks"},
            {"tp-blocks/spark/pom.xml", "io.djltp.spark"},
            {"tp-blocks/llm/pom.xml", "io.djltp.llm"},
            {"examples/pom.xml", "io.djltp.examples"},
        };
    }

    /** The name in the manifest, which programs on the module path require. */
    @Test(dataProvider = "modules")
    public void hasTheModuleName(String pom, String name) throws Exception {
        Assert.assertEquals(value(read(pom), "/project/properties/module.name"), name);
    }

    /** What readers copy is the version that there is. */
    @Test
    public void readmeAndCommandHaveTheVersion() throws IOException {
        String readme = Files.readString(ROOT.resolve("README.md"));
        Assert.assertTrue(readme.contains("<version>" + version + "</version>"));
        Assert.assertTrue(readme.contains("'io.djltp:tp-blocks:" + version + "'"));
        String catalogue = Files.readString(ROOT.resolve("jbang-catalog.json"));
        Assert.assertTrue(catalogue.contains("\"io.djltp:tp-cli:" + version + "\""));
        Path command = ROOT.resolve("examples/src/main/java/io/djltp/examples/Tp.java");
        Assert.assertTrue(
                Files.readString(command).contains("DJL Tensor Parallel " + version + "\""));
    }

    /** The options of jbang's catalogue are some of those of the launcher. */
    @Test
    public void theCatalogueHasOptionsOfTheLauncher() throws IOException {
        List<String> options = Files.readAllLines(ROOT.resolve("examples/tp.options"));
        String catalogue = Files.readString(ROOT.resolve("jbang-catalog.json"));
        List<String> others =
                Pattern.compile("\"(-[^\"]+)\"")
                        .matcher(catalogue)
                        .results()
                        .map(option -> option.group(1))
                        .filter(option -> !options.contains(option))
                        .toList();
        Assert.assertEquals(others, List.of("-Dtp.command=tp"));
    }

    /** What users must add themselves is named with the version that the BOM has. */
    @Test
    public void optionalDependencyIsNamedWithItsVersion() throws Exception {
        String tribuo = value(read("tp-blocks/bom/pom.xml"), "/project/properties/tribuo.version");
        String name = "org.tribuo:tribuo-util-onnx:";
        for (String file :
                List.of(
                        "docs/pretrained.md",
                        "tp-blocks/src/main/java/io/djltp/exchange/OnnxExport.java",
                        "tp-blocks/llm/src/main/java/io/djltp/llm/zoo/MiniLmFolder.java")) {
            String text = Files.readString(ROOT.resolve(file));
            Assert.assertTrue(text.contains(name + tribuo), file);
            Assert.assertEquals(
                    text.split(name, -1).length, text.split(name + tribuo, -1).length, file);
        }
    }

    private static Document read(String pom)
            throws IOException, ParserConfigurationException, SAXException {
        return DocumentBuilderFactory.newInstance()
                .newDocumentBuilder()
                .parse(ROOT.resolve(pom).toFile());
    }

    private static String value(Document document, String path) throws XPathExpressionException {
        return XPathFactory.newInstance().newXPath().evaluate(path, document).strip();
    }
}
