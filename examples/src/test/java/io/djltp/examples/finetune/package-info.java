/** Tests of the command that fine-tunes models. */
package io.djltp.examples.finetune;
