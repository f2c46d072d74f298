/** Tests of the command that generates text. */
package io.djltp.examples.generate;
