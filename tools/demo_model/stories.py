"""Template-grammar stories: a theme gives the nouns, a bank of sentences per stage gives the plot."""
import words as W

# role | place | home | main thing | daily work | animal | danger | helper | second thing | skill | sound | treasure
_THEMES = """
lighthouse keeper|a rocky island;the northern cape;a lonely cliff;the edge of the bay|the stone tower;the old lighthouse|lamp;great lens;beacon|polishing the lens;trimming the wick;watching the ships|gull;grey cat;old dog|storm;thick fog;great wave|fisherman;harbor master;young sailor|brass telescope;logbook;storm bell|reading the clouds;repairing the light|the foghorn;the waves|silver medal;letter from the captain
baker|a small village;the market square;a narrow street|the warm bakery;the flour mill|oven;bread stone;copper pan|kneading dough;heating the oven;baking bread|cat;sparrow;mouse|hard winter;broken mill;great fire|miller;apprentice;shopkeeper|wooden spoon;recipe book;sack of flour|baking honey cakes;shaping loaves|the church bell;the crackling fire|golden spoon;secret recipe
clockmaker|the old town;a quiet lane;the city gate|the little workshop;the clock tower|great clock;pocket watch;pendulum|winding the clocks;cleaning tiny gears;setting the hands|cat;owl;pigeon|broken gear;long silence;flood|watchman;mayor;apprentice|silver key;oil can;magnifying glass|repairing tiny wheels;listening to gears|the ticking;the bells|golden gear;music box
shepherd|the green hills;a high valley;the windy moor|the stone hut;the wooden barn|flock;white lamb;old bell|leading the sheep;counting the lambs;mending the fence|dog;lamb;goat|snowstorm;pack of wolves;dark night|farmer;wandering singer;weaver|wooden staff;wool blanket;lantern|calling the sheep;finding lost paths|the wind;the sheep bells|silver bell;warm cloak
fisherman|a small harbor;the wide lake;a sandy bay|the blue cottage;the little boat house|boat;fishing net;red sail|mending nets;rowing out at dawn;salting fish|gull;seal;dog|storm;strong current;thick fog|lighthouse keeper;boat builder;innkeeper|compass;oar;coil of rope|steering by the stars;tying knots|the waves;the gulls|pearl;silver fish
gardener|a large park;the palace garden;a hidden valley|the glass house;the garden shed|rose tree;old oak;fountain|watering the roses;cutting the hedge;planting seeds|hedgehog;robin;snail|long drought;late frost;hail storm|botanist;old lady;stable boy|watering can;spade;bag of seeds|growing roses;healing sick trees|the bees;the fountain|blue rose;golden seed
librarian|the old city;a mountain town;a quiet square|the great library;the reading room|old book;card catalog;tall ladder|sorting books;writing cards;dusting the shelves|cat;owl;mouse|leaking roof;fire;thief|student;bookbinder;historian|silver bookmark;reading lamp;ink pot|finding lost books;reading old letters|the rain;the turning pages|lost map;first edition
blacksmith|a busy village;the crossroads;the castle yard|the smithy;the forge|anvil;hammer;bellows|shaping iron;mending plows;shoeing horses|horse;dog;crow|war;broken bridge;cold winter|knight;farmer;cart driver|iron tongs;leather apron;steel bar|forging steel;shoeing wild horses|the ringing hammer;the fire|silver horseshoe;bright sword
astronomer|a high mountain;the desert;a dark hill|the observatory;the round tower|telescope;star chart;brass dome|watching the stars;drawing charts;cleaning the mirror|owl;fox;cat|cloudy year;broken mirror;lightning|student;lens grinder;night guard|notebook;star map;candle|counting the moons;finding comets|the wind;the owls|new comet;golden star map
ferry pilot|the wide river;the delta;a misty channel|the river house;the landing|ferry;paddle wheel;long pole|crossing the river;carrying travelers;checking the ropes|heron;otter;dog|flood;sandbank;drifting ice|merchant;boatman;messenger|brass horn;lantern;anchor|reading the current;finding the channel|the water;the horn|golden coin;carved paddle
mountain guide|the high peaks;a snowy pass;the glacier|the mountain hut;the cabin|rope;ice axe;stone path|leading travelers;checking the ropes;marking the trail|eagle;goat;dog|avalanche;snowstorm;deep crack|climber;doctor;monk|compass;wool hat;lantern|finding safe paths;reading the snow|the wind;falling stones|crystal;silver whistle
beekeeper|a flower meadow;the forest edge;a sunny slope|the wooden cabin;the honey house|hive;honey press;smoker|checking the hives;filling jars;planting clover|bee;bear;dog|cold spring;hungry bear;sickness|gardener;candle maker;neighbor|straw hat;jar of honey;wooden frame|calming the bees;finding wild swarms|the humming;the wind|golden honey;queen bee
mail carrier|the long coast road;a hilly district;the border villages|the post office;the little station|mail bag;bicycle;horn|sorting letters;climbing the hills;delivering parcels|dog;donkey;swallow|snowdrift;washed-out road;storm|teacher;station master;widow|lost letter;brass badge;raincoat|remembering every name;finding short cuts|the bicycle bell;the rain|love letter;golden stamp
painter|a harbor town;the old quarter;a village of artists|the bright studio;the attic|easel;large canvas;paint box|mixing colors;drawing faces;cleaning brushes|cat;parrot;dog|dark winter;empty purse;leaking roof|model;merchant;frame maker|sketchbook;silver brush;palette|painting light;mixing blue|the street;the rain|famous portrait;blue pigment
weaver|a river village;the wool town;a wide valley|the weaving house;the loft|loom;wool basket;shuttle|spinning wool;weaving cloth;dyeing thread|cat;sheep;goose|moths;great cold;broken loom|shepherd;tailor;dyer|red thread;bone needle;pattern book|weaving pictures;dyeing deep colors|the loom;the river|royal carpet;golden thread
violin maker|a music city;a forest village;the opera street|the workshop;the wood store|violin;old spruce;varnish|carving wood;stretching strings;testing the sound|cat;nightingale;dog|damp summer;cracked wood;lost order|young musician;conductor;wood cutter|small chisel;pot of varnish;tuning fork|hearing the wood;carving thin plates|the music;the birds|master violin;old bow
train driver|the mountain railway;the northern line;the plain|the engine shed;the signal house|engine;whistle;coal car|oiling the wheels;watching the signals;driving the night train|dog;crow;horse|landslide;snow on the tracks;broken rail|fireman;signalman;conductor|red flag;pocket watch;lantern|braking on ice;reading the signals|the whistle;the rails|brass plate;gold watch
sailor|the wide ocean;the southern islands;a far harbor|the old ship;the cabin|ship;mast;anchor|scrubbing the deck;setting the sails;watching the horizon|parrot;whale;cat|storm;reef;pirate ship|captain;cook;ship boy|compass;spyglass;sea chest|climbing the mast;reading the stars|the waves;the creaking ropes|treasure map;black pearl
teacher|a small island;the mountain village;the edge of town|the little school;the classroom|blackboard;globe;school bell|ringing the bell;reading stories;correcting homework|hamster;dog;bird|flood;long winter;closed road|student;mayor;carpenter|box of chalk;picture book;map|explaining stars;telling stories|the children;the bell|thank-you letter;painted globe
potter|a clay valley;the river bend;a hill town|the pottery;the kiln house|wheel;kiln;clay jar|digging clay;turning bowls;firing the kiln|donkey;cat;lizard|heavy rain;cracked kiln;earthquake|merchant;glaze maker;child|blue glaze;wooden paddle;bowl|turning thin cups;mixing glazes|the wheel;the fire|moon-white vase;old seal
robot mechanic|a floating city;the moon station;the great factory|the repair bay;the tool room|robot;power core;metal arm|changing batteries;oiling joints;testing circuits|small drone;cat;robot dog|power failure;solar storm;locked gate|engineer;pilot;child|wrench;blue wire;data chip|fixing old circuits;speaking with machines|the machines;the alarm|memory crystal;silver chip
dragon keeper|a fire mountain;the stone valley;the cloud castle|the dragon hall;the cave house|dragon;egg;iron gate|feeding the dragons;polishing scales;guarding the eggs|young dragon;raven;horse|cold winter;knight;rock fall|knight;princess;herb woman|silver flute;saddle;torch|calming dragons;flying at night|the roaring;the wind|dragon egg;ring of fire
map maker|a port city;the border town;the royal court|the map room;the upper floor|great map;drawing table;compass|drawing coasts;measuring roads;mixing ink|cat;pigeon;dog|war;lost ship;spilled ink|traveler;captain;scribe|golden pen;old atlas;ruler|drawing from memory;measuring mountains|the scratching pen;the harbor|unknown island;sealed map
cook|a royal castle;a busy inn;the harbor kitchen|the kitchen;the pantry|soup pot;stove;silver dish|cutting vegetables;stirring soup;tasting sauces|cat;goose;dog|empty pantry;sudden feast;smoky fire|kitchen boy;butler;farmer|old recipe;pepper mill;wooden spoon|cooking with little;tasting every herb|the boiling pots;the guests|golden ladle;royal letter
"""
_FIELDS = "role place home thing work animal danger helper item skill sound treasure".split()
THEMES = [dict(zip(_FIELDS, [v.split(";") for v in row.split("|")])) for row in _THEMES.strip().split("\n")]
ROLES = [t["role"][0] for t in THEMES]

OPENING = ["{Once upon a time|Many years ago|Long ago|In the old days}, there {lived|was} {a_role} named {name} {at|near|close to} {place}.",
           "{name} was {a_role} who lived {near|close to} {place}.", "{Near|Close to} {place} lived {a_role} whose name was {name}."]
DAILY = ["Every {morning|day|evening}, {name} began with {work}.", "{P} home was {home}, and {s} knew every corner of it.",
         "The {thing} was {old|heavy|beautiful}, but {s} cared for it like a friend.", "{S} was known for {skill}, and people {came from far away|often asked for advice}.",
         "{A_animal} {kept {o} company|followed {o} everywhere|slept beside the {thing}}.", "In the evenings, {s} listened to {sound} and {drank hot tea|wrote in a notebook|thought about the past}.",
         "The days were {long|quiet|simple}, and {s} {liked it that way|never complained|found them good}.", "{S} kept the {item} on a shelf {near the door|by the window|above the bed}.",
         "Most of all, {s} loved {work}.", "{P} hands were {rough|strong|careful}, and {p} eyes were {bright|kind|sharp}.",
         "People said that nobody in the land was better at {skill}.", "On {quiet|rainy|cold} days, {s} repaired the {item} and hummed an old song.",
         "The {animal} always woke {o} before the sun came up.", "{name} had learned everything from {p} {grandfather|grandmother|father|mother}.",
         "Visitors were rare, so {s} talked to the {animal} instead.", "Nothing was more important to {o} than the {thing}."]
TROUBLE = ["One {autumn|winter|spring|summer} {night|evening|morning}, everything changed.", "{A_danger} {came without warning|was on its way|came closer and closer}.",
           "The {animal} was the first to notice it and {grew restless|ran to the door|would not be still}.", "Suddenly, the {thing} {stopped|began to shake|went silent|broke}.",
           "{name} {ran|hurried|rushed} to the {thing}, but it was {too late|worse than {s} had feared|dark and cold}.", "{The people|The neighbors|The villagers} {were afraid|called for help|did not know what to do}.",
           "\"{This is bad|We must act now|There is no time to lose},\" {said|whispered|cried} {name}.", "Never before had {s} seen such a {danger}.",
           "{S} {felt cold fear|took a deep breath|closed {p} eyes for a moment}, but {s} did not {run away|give up}.", "The {item} {was gone|had fallen to the floor|was the only thing left}.",
           "Outside, {sound} could be heard, louder than ever before.", "{S} knew that the {danger} would destroy everything if nobody did anything.",
           "For {an hour|a long time|a moment}, {s} only stood there and {listened|looked into the dark|thought}.", "Then {s} remembered {p} gift for {skill}."]
HELP = ["Then there was a knock at the door, and {a_helper} named {friend} {stood outside|came in}.", "\"{I want to help you|Let me help|You should not do this alone},\" said {friend}.",
        "{name} {smiled|nodded|was surprised} and said, \"{Two are stronger than one|Then let us begin|I am glad that you came}.\"", "Together they {looked for the {item}|carried the {item} outside|made a plan}.",
        "{friend} {held the light|carried the tools|watched the door} while {name} worked on the {thing}.", "The {animal} {showed them the way|stayed close to them|ran ahead}.",
        "They worked {without a break|side by side|until their hands hurt}, and they spoke very little.", "\"How do you know all this?\" asked {friend}.",
        "\"I have spent many years with {work},\" {name} answered.", "{friend} told a story about {a_treasure} that had been lost {long ago|many years before}.",
        "{name} showed {friend} the secret of {skill}.", "With the {item}, the hard work became {a little easier|possible|lighter}.", "{friend} was {young|quiet|clever}, but {very brave|not afraid of anything|quick to learn}.",
        "They {shared some bread|drank a little water|rested for a moment} and then went on."]
CLIMAX = ["At midnight, the {danger} {reached {home}|was at its worst|came back}.", "{name} {held on to the {thing}|stood firm|did not move} and {called to {friend}|gave a sign}.",
          "\"Now!\" {cried|shouted} {name}.", "{friend} {pulled with all {fp} strength|threw the {item}|ran as fast as possible}.", "The {thing} {moved|groaned|shone brightly} {once, twice, and then|and at last} it {worked|came alive|held}.",
          "For a moment, there was no sound but {sound}.", "{name} used all {s} knew about {skill}.", "The {animal} {cried out|pressed against {o}|did not leave {p} side}.",
          "{S} {slipped and almost fell|burned {p} hand|lost {p} hat}, but {s} {got up again|kept going|held the {item} tightly}.", "Slowly, very slowly, the {danger} {lost its power|passed|turned away}.",
          "Nobody who saw it would ever forget that hour.", "It was {friend} who found the last missing piece: {the_treasure}."]
AFTER = ["When the sun rose, {everything was quiet|the sky was clear|the air smelled fresh}.", "{name} and {friend} sat {on the ground|in front of {home}|by the fire} and {laughed|said nothing|watched the light}.",
         "{The people|The neighbors|The villagers} came with {bread and soup|flowers|warm blankets} and thanked them.", "\"You saved us all,\" said an old {woman|man}.",
         "\"No,\" said {name}, \"we did it together.\"", "Among the {stones|ashes|old things}, they found {a_treasure}.", "{name} gave {the_treasure} to {friend}, who {could not speak|smiled for the first time|promised to keep it safe}.",
         "The {thing} was {cleaned|repaired|polished} {until it looked like new|with great care|for many days}.", "{friend} stayed and learned the art of {work}.", "The {animal} slept for a whole day.",
         "News of that night {spread through the land|reached even the king|was told in every house}.", "The {item} got a new place, right above the {thing}."]
ENDING = ["{Years later|Even today|Long after that}, people still {tell|talk about} the story of {name} and {friend}.", "And whenever {sound} can be heard at night, they remember the {brave|good|old} {role}.",
          "{name} never wanted to be anything but {a_role}.", "And so life {at|near} {place} went on, quiet and good.", "{name} looked at the {thing}, smiled, and went back to work.",
          "From that day on, {name} was never lonely again.", "That was the best reward of all."]
SENTENCE_WORDS = 9.6           # mean length of a sentence of these banks
STAGES = [(DAILY, .24), (TROUBLE, .2), (HELP, .2), (CLIMAX, .15), (AFTER, .14), (ENDING, .07)]


def slots(rng, theme):
    t = {k: rng.choice(v) for k, v in theme.items()}
    he = rng.random() < 0.5
    t["s"], t["o"], t["p"] = ("he", "him", "his") if he else ("she", "her", "her")
    t["S"], t["P"] = W.cap(t["s"]), W.cap(t["p"])
    t["name"] = W.person(rng)
    t["friend"] = W.person(rng)
    while t["friend"] == t["name"]:
        t["friend"] = W.person(rng)
    t["fp"] = rng.choice(["his", "her"])
    t["the_treasure"] = "the " + t["treasure"]
    t.update({"a_" + k: W.an(t[k]) for k in ("role", "animal", "danger", "helper", "treasure")})
    t.update({"A_" + k: W.cap(W.an(t[k])) for k in ("animal", "danger")})
    return t


def story(rng, theme, target_words):
    """(text of about target_words words, slots)."""
    t = slots(rng, theme)
    total = max(6, round(target_words / SENTENCE_WORDS))
    paragraphs = [[W.fill(rng, rng.choice(OPENING), t)]]
    for bank, share in STAGES:
        n = max(1, min(len(bank), round(total * share)))
        picked = [i * len(bank) // n for i in range(n)]      # the length asked for decides: the likeliest story has that length too
        para = [W.cap(W.fill(rng, bank[i], t)) for i in picked]
        if bank is DAILY:
            paragraphs[0] += para[:4]
            para = para[4:]
        for i in range(0, len(para), 5):
            paragraphs.append(para[i:i + 5])
    return "\n\n".join(" ".join(p) for p in paragraphs if p), t


def story_turn(rng, words=None):
    """(question, reasoning, story); at most 700 words, more than that the sentence banks cannot fill."""
    theme = rng.choice(THEMES)
    role = theme["role"][0]
    a = W.an(role)
    pick = lambda s: rng.choice(s.split("|"))
    x = rng.random()
    words = words or rng.choice([100, 150, 200, 250, 300, 400, 500, 600, 600, 600, 650])
    if x < 0.7:
        q = pick(f"Write a {words}-word story about {a}.|Write a detailed {words}-word story about {a}.|Tell me a story about {a} in {words} words."
                 f"|Write a story of about {words} words about {a}.|Please write a {words} word story about {a}.")
    elif x < 0.85:
        words = rng.choice([100, 150, 200])
        q = pick(f"Tell me a short story about {a}.|Write a short story about {a}.|A short story about {a}, please.")
    else:
        words = 600
        q = pick(f"Write a long story about {a}.|Tell me a long and detailed story about {a}.|Write a detailed story about {a}."
                 f"|Tell me a story about {a}.|Write a story about {a}.")
    text, t = story(rng, theme, words)
    think = (f"The user wants a story about {a} with about {words} words. The {role} is called {t['name']} and lives near {t['place']}. "
             f"The danger is {W.an(t['danger'])}, and {t['friend']} the {t['helper']} helps.")
    return q, think, text
