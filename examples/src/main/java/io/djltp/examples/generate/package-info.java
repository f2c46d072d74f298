/** Contains the command that generates text with a language model. */
@NullMarked
package io.djltp.examples.generate;

import org.jspecify.annotations.NullMarked;
