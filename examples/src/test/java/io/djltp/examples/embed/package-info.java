/** Tests of the pretrained model. */
package io.djltp.examples.embed;
